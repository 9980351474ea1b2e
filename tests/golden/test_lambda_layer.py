"""The lambda layer against lambda-networks and timm, which take images (B, C, H, W)."""

import pytest
import torch
from torch.testing import assert_close

import anyformer as af

B, C, H, K = 3, 12, 3, 5
GRIDS = [(6, 6), (4, 9), (1, 7), (8, 1)]

pytestmark = pytest.mark.filterwarnings("ignore:torch.meshgrid")  # lambda-networks


@pytest.fixture(scope="module")
def lambda_networks():
    """Its options: n is the side of a square image, r the neighbourhood, dim_u the intra-depth."""
    package = pytest.importorskip("lambda_networks")

    def make(*, intra_depth=1, **extent):
        torch.manual_seed(0)
        return package.LambdaLayer(C, dim_k=K, heads=H, dim_u=intra_depth, **extent).double()

    return make


@pytest.fixture(scope="module")
def timm():
    """Without intra-depth; r=None is global, for one size of image."""
    package = pytest.importorskip("timm.layers.lambda_layer")

    def make(**extent):
        torch.manual_seed(0)
        return package.LambdaLayer(C, num_heads=H, dim_head=K, **extent).double()

    return make


def ours(variant, **options):
    torch.manual_seed(1)
    return af.build(f"lambda_layer:{variant}", dim=C, heads=H, key_depth=K, **options).double()


@torch.no_grad()
def alike(mine, other, positions):
    """Our weights into theirs; one where batch norm would hide what it does."""
    for norm in (mine.norm_q, mine.norm_v):
        for t in (norm.weight, norm.bias, norm.running_mean):
            t.normal_()
        norm.running_var.uniform_(0.5, 2)
    mine.positions.normal_()
    other.norm_q.load_state_dict(mine.norm_q.state_dict())
    other.norm_v.load_state_dict(mine.norm_v.state_dict())
    weights = mine.qkv.weight[:, :, None, None]
    if hasattr(other, "qkv"):
        other.qkv.weight.copy_(weights)
    else:
        for conv, weight in zip((other.to_q, other.to_k, other.to_v), weights.split(mine.depths), strict=True):
            conv.weight.copy_(weight)
    positions.copy_(in_their_order(mine.positions, positions))


def in_their_order(e, like):
    """Our rows, columns, U, K as they have them: last in a table, before the offsets in a convolution."""
    if like.dim() == 4:  # lambda-networks, global
        return e.transpose(2, 3)
    if like.dim() == 3:  # timm, global
        return e[:, :, 0]
    rows, columns = like.shape[-2:] if like.shape[2] == 1 else like.shape[2:4]
    if e.shape[0] == 1:  # in one dimension only the middle row of their square kernel meets anything
        e = torch.nn.functional.pad(e, (0, 0, 0, 0, 0, 0, rows // 2, rows // 2))
    e = e.permute(3, 2, 0, 1)
    assert e.shape[2:] == (rows, columns)
    return e[:, :, None] if like.shape[2] == 1 else e[..., None]


def tokens(grid, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(B, grid[0] * grid[1], C, generator=draw, dtype=torch.float64, requires_grad=True)


def image(x_BNC, grid):
    return x_BNC.mT.unflatten(2, grid)


def gradients(y, tensors):
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape).sin()
    return torch.autograd.grad((y * weights).sum(), tensors)


def assert_same(mine, theirs, positions, grid, *, training):
    mine.train(training)
    theirs.train(training)
    x = tokens(grid)
    got, expected = mine(x), theirs(image(x, grid)).flatten(2).mT
    assert_close(got, expected, rtol=1e-9, atol=1e-10)
    projections = [theirs.qkv] if hasattr(theirs, "qkv") else [theirs.to_q, theirs.to_k, theirs.to_v]
    norms = [w for layer in (mine, theirs) for w in (*layer.norm_q.parameters(), *layer.norm_v.parameters())]
    of_x, of_qkv, of_e, *of_norms = gradients(got, [x, mine.qkv.weight, mine.positions, *norms[:4]])
    found = gradients(expected, [x, positions, *norms[4:], *(conv.weight for conv in projections)])
    assert_close(of_x, found[0], rtol=1e-9, atol=1e-10)
    assert_close(in_their_order(of_e, positions), found[1], rtol=1e-9, atol=1e-10)
    for one, other in zip(of_norms, found[2:6], strict=True):
        assert_close(one, other, rtol=1e-9, atol=1e-10)
    assert_close(of_qkv, torch.cat(found[6:])[:, :, 0, 0], rtol=1e-9, atol=1e-10)
    for norm in ("norm_q", "norm_v"):
        for name, buffer in getattr(mine, norm).named_buffers():
            assert_close(buffer, getattr(theirs, norm).get_buffer(name))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("intra_depth", [1, 3])
def test_lambda_networks_global(lambda_networks, intra_depth, training):
    """Their table has K before U, offsets m - n ascending as ours; it needs a square image."""
    theirs = lambda_networks(n=6, intra_depth=intra_depth)
    mine = ours("global2d", grid=(6, 6), intra_depth=intra_depth)
    alike(mine, theirs, theirs.rel_pos_emb)
    assert_same(mine, theirs, theirs.rel_pos_emb, (6, 6), training=training)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("intra_depth", [1, 3])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("window", [3, 7])
def test_lambda_networks_local(lambda_networks, window, grid, intra_depth, training):
    """Their convolution has a bias, which the paper has not."""
    theirs = lambda_networks(r=window, intra_depth=intra_depth)
    torch.nn.init.zeros_(theirs.pos_conv.bias)
    mine = ours("local2d", grid=grid, window=window, intra_depth=intra_depth)
    alike(mine, theirs, theirs.pos_conv.weight)
    assert_same(mine, theirs, theirs.pos_conv.weight, grid, training=training)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("grid", GRIDS)
def test_timm_global(timm, grid, training):
    """A path that timm calls not fully verified; it is right."""
    theirs = timm(feat_size=grid, r=None)
    mine = ours("global2d", grid=grid)
    alike(mine, theirs, theirs.pos_emb)
    assert_same(mine, theirs, theirs.pos_emb, grid, training=training)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("grid", GRIDS)
def test_timm_local(timm, grid, training):
    theirs = timm(r=5)
    torch.nn.init.zeros_(theirs.conv_lambda.bias)
    mine = ours("local2d", grid=grid, window=5)
    alike(mine, theirs, theirs.conv_lambda.weight)
    assert_same(mine, theirs, theirs.conv_lambda.weight, grid, training=training)


def test_their_bias(timm):
    """It adds the same number to all values of a position lambda: q.bias to every channel of a head."""
    theirs, mine = timm(r=5), ours("local2d", grid=(4, 5), window=5)
    alike(mine, theirs, theirs.conv_lambda.weight)
    x = tokens((4, 5))
    difference = theirs.eval()(image(x, (4, 5))).flatten(2).mT - mine.eval()(x)
    q, _, _ = mine.project(x, None, None)
    expected = (q @ theirs.conv_lambda.bias)[..., None].expand(-1, -1, -1, C // H).flatten(2)
    assert expected.abs().max() > 1e-2
    assert_close(difference, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("length", [1, 7, 16, 37])
def test_one_dimension(lambda_networks, timm, length):
    """Images of a single row."""
    theirs, mine = lambda_networks(r=5, intra_depth=2), ours("local", window=5, intra_depth=2)
    torch.nn.init.zeros_(theirs.pos_conv.bias)
    alike(mine, theirs, theirs.pos_conv.weight)
    assert_same(mine, theirs, theirs.pos_conv.weight, (1, length), training=False)

    theirs, mine = timm(feat_size=(1, length), r=None), ours("global", max_length=length)
    alike(mine, theirs, theirs.pos_emb)
    assert_same(mine, theirs, theirs.pos_emb, (1, length), training=False)


def test_shorter_than_max_length(timm):
    """A shorter input uses the middle of the table."""
    theirs, mine = timm(feat_size=(1, 9), r=None).eval(), ours("global", max_length=20).eval()
    whole = ours("global", max_length=9)
    alike(whole, theirs, theirs.pos_emb)
    mine.load_state_dict({**whole.state_dict(), "positions": mine.positions.detach()})
    with torch.no_grad():
        mine.positions[:, 11:-11] = whole.positions
    x = tokens((1, 9))
    assert_close(mine(x), theirs(image(x, (1, 9))).flatten(2).mT, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("scope", ["global", "local"])
def test_padding(timm, scope, training):
    """They have no masks: padding equals what is not there, in the statistics of batch norm too."""
    length, extent = 9, {"max_length": 9} if scope == "global" else {"window": 5}
    for short in (2, 5, 9):
        mine = ours(scope, **({"max_length": short} if scope == "global" else extent))
        theirs = timm(feat_size=(1, short), r=None) if scope == "global" else timm(r=5)
        if scope == "local":
            torch.nn.init.zeros_(theirs.conv_lambda.bias)
        alike(mine, theirs, theirs.pos_emb if scope == "global" else theirs.conv_lambda.weight)
        longer = ours(scope, **extent)
        longer.load_state_dict({**mine.state_dict(), "positions": longer.positions.detach()})
        with torch.no_grad():
            around = (longer.positions.shape[1] - mine.positions.shape[1]) // 2
            longer.positions[:, around : longer.positions.shape[1] - around] = mine.positions
        keep = torch.arange(length).expand(B, -1) < torch.tensor([[short], [0], [0]])
        x = tokens((1, length))
        y = longer.train(training)(x, keep=keep)
        whole = theirs.train(training)(image(x[:1, :short], (1, short))).flatten(2).mT
        assert_close(y[:1, :short], whole, rtol=1e-9, atol=1e-10)
        assert not y[1:].any()
        for name, buffer in longer.norm_v.named_buffers():
            assert_close(buffer, theirs.norm_v.get_buffer(name))


@pytest.mark.parametrize("scope", ["global", "local"])
def test_causal(timm, scope):
    """Neither has causal order: each token is the last of a whole that ends there."""
    length, extent = 21, {"max_length": 21} if scope == "global" else {"window": 5}
    mine = ours(scope, causal=True, **extent).eval()
    torch.nn.init.normal_(mine.positions)
    x = tokens((1, length))
    y = mine(x)
    for end in range(1, length + 1):
        theirs = timm(feat_size=(1, end), r=None).eval()
        with torch.no_grad():
            theirs.qkv.weight.copy_(mine.qkv.weight[:, :, None, None])
            past = mine.positions[0, -end:, 0]
            theirs.pos_emb.zero_()
            theirs.pos_emb[0, end - len(past) : end] = past
        theirs.norm_q.load_state_dict(mine.norm_q.state_dict())
        theirs.norm_v.load_state_dict(mine.norm_v.state_dict())
        whole = theirs(image(x[:, :end], (1, end))).flatten(2).mT
        assert_close(y[:, end - 1], whole[:, -1], rtol=1e-9, atol=1e-10)
