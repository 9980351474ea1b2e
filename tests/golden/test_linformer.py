"""Linformer against the linformer package, which has one E and one F for all heads of a layer."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import anyformer as af

DIM, HEADS, B, N, LONGEST, RANK = 24, 4, 3, 9, 13, 5


@pytest.fixture(scope="module")
def theirs():
    """Their layer with all weights drawn anew, so that none hides behind a zero."""
    package = pytest.importorskip("linformer")

    def make(dim=DIM, seed=0, **options):
        torch.manual_seed(seed)
        layer = package.LinformerSelfAttention(dim, seq_len=LONGEST, k=RANK, **options).double()
        with torch.no_grad():
            for p in layer.parameters():
                p.normal_(std=0.4)
            layer.to_out.bias.zero_()  # they have this bias always, and no other
        return layer

    return make


def ours_from(theirs, sharing="headwise", key_heads=None):
    """Our layer with their weights, and what of ours answers each weight of theirs."""
    ours = af.build(
        f"linformer:{sharing}",
        dim=theirs.to_out.out_features,
        heads=theirs.heads,
        head_dim=theirs.dim_head,
        key_heads=key_heads,
        max_length=LONGEST,
        rank=RANK,
    ).double()
    answers = [
        (theirs.to_q.weight, [ours.q.weight]),
        (theirs.to_out.weight, [ours.out.weight]),
        (theirs.proj_k, [ours.core.E]),
    ]
    if theirs.share_kv:
        answers.append((theirs.to_k.weight, [ours.k.weight, ours.v.weight]))
    else:
        answers += [(theirs.to_k.weight, [ours.k.weight]), (theirs.to_v.weight, [ours.v.weight])]
        answers.append((theirs.proj_v, [ours.core.F]))
    with torch.no_grad():
        for other, mine in answers:
            for weight in mine:
                weight.copy_(like(other, theirs))
    return ours, answers


def like(other, theirs):
    """They store E as (n, k)."""
    return other.mT if any(other is p for p in (theirs.proj_k, getattr(theirs, "proj_v", None))) else other


def tokens(length, dim=DIM, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(B, length, dim, generator=draw, dtype=torch.float64, requires_grad=True)


def gradients(y, tensors):
    """Of a loss that tells every output from every other."""
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape).sin()
    return torch.autograd.grad((y * weights).sum(), tensors)


def assert_same(got, expected, inputs, theirs, answers):
    assert_close(got, expected, rtol=1e-10, atol=1e-12)
    mine = [weight for _, weights in answers for weight in weights]
    found = list(gradients(got, [*inputs, *mine]))
    wanted = gradients(expected, [*inputs, *(other for other, _ in answers)])
    for gradient in wanted[: len(inputs)]:
        assert_close(found.pop(0), gradient, rtol=1e-9, atol=1e-11)
    for gradient, (other, weights) in zip(wanted[len(inputs) :], answers, strict=True):
        total = sum(found.pop(0) for _ in weights)
        assert_close(total, gradient.mT if like(other, theirs) is not other else gradient, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("length", [LONGEST, N, RANK, 1])
@pytest.mark.parametrize("one_kv_head", [False, True], ids=["heads-of-keys", "one-key-head"])
@pytest.mark.parametrize("share_kv", [False, True], ids=["headwise", "key-value"])
def test_self_attention(theirs, share_kv, one_kv_head, length):
    """Their share_kv goes beyond the paper's key-value sharing: W^K is W^V too, so each of ours is a half of theirs."""
    other = theirs(heads=HEADS, share_kv=share_kv, one_kv_head=one_kv_head)
    ours, answers = ours_from(other, "key_value" if share_kv else "headwise", 1 if one_kv_head else None)
    x = tokens(length)
    assert_same(ours(x), other(x), [x], other, answers)


@pytest.mark.parametrize("keys", [LONGEST, 4])
@pytest.mark.parametrize("dim_head", [None, 7])
def test_cross_attention(theirs, dim_head, keys):
    other = theirs(heads=HEADS, dim_head=dim_head)
    ours, answers = ours_from(other)
    x, context = tokens(N), tokens(keys, seed=2)
    assert_same(ours(x, context), other(x, context), [x, context], other, answers)
    state = ours.start(B, context=context)
    assert_close(ours.stream(x, state)[0], other(x, context), rtol=1e-10, atol=1e-12)
    assert state.held.k_BHKD.shape == (B, HEADS, RANK, dim_head or DIM // HEADS)


def test_each_head_its_own(theirs):
    """The paper's case without sharing, which they do not have: a layer of theirs for every head, summed."""
    dim_head = DIM // HEADS
    alone = [theirs(heads=1, dim_head=dim_head, seed=head) for head in range(HEADS)]
    ours = af.build("linformer:none", dim=DIM, heads=HEADS, max_length=LONGEST, rank=RANK).double()
    with torch.no_grad():
        for part in "qkv":
            weights = [getattr(other, f"to_{part}").weight for other in alone]
            getattr(ours, part).weight.copy_(torch.cat(weights))
        ours.out.weight.copy_(torch.cat([other.to_out.weight for other in alone], 1))
        ours.core.E.copy_(torch.stack([other.proj_k.mT for other in alone]))
        ours.core.F.copy_(torch.stack([other.proj_v.mT for other in alone]))
    x = tokens(N)
    got, expected = ours(x), sum(other(x) for other in alone)
    assert_close(got, expected, rtol=1e-10, atol=1e-12)
    found_x, found_E, found_F = gradients(got, [x, ours.core.E, ours.core.F])
    wanted = gradients(expected, [x, *(other.proj_k for other in alone), *(other.proj_v for other in alone)])
    assert_close(found_x, wanted[0], rtol=1e-9, atol=1e-11)
    assert_close(found_E, torch.stack([g.mT for g in wanted[1 : 1 + HEADS]]), rtol=1e-9, atol=1e-11)
    assert_close(found_F, torch.stack([g.mT for g in wanted[1 + HEADS :]]), rtol=1e-9, atol=1e-11)


def test_padding(theirs):
    """They have no masks, and swallow one; their function of tokens that are zero where padded is ours with `keep`."""
    other = theirs(heads=HEADS)
    ours, answers = ours_from(other)
    x = tokens(N)
    keep = torch.rand(B, N, generator=torch.Generator().manual_seed(3)) < 0.6
    keep[0] = False
    assert_close(other(x, mask=keep), other(x), rtol=0, atol=0)
    assert_same(ours(x, keep=keep), other(x * keep[:, :, None]), [x], other, answers)
    assert not ours(x, keep=keep)[0].any()


def test_too_long(theirs):
    other = theirs(heads=HEADS)
    ours, _ = ours_from(other)
    x = tokens(LONGEST + 1)
    with pytest.raises(AssertionError, match="sequence length"):
        other(x)
    with pytest.raises(ValueError, match="max_length=13 is too short for 14 keys"):
        ours(x)
    assert_close(ours(x, x[:, :N]), other(x, x[:, :N]), rtol=1e-10, atol=1e-12)  # more queries are no matter


def test_initialisation():
    """Theirs is uniform within 1 / sqrt(k), whatever n is; ours is that of the authors, Xavier's over gain sqrt(2)."""
    package = pytest.importorskip("linformer")
    n, k = 600, 100
    torch.manual_seed(0)
    theirs, ours = package.LinformerSelfAttention(8, seq_len=n, k=k).proj_k, nn.Linear(n, k, bias=False)
    nn.init.xavier_uniform_(ours.weight, gain=2**-0.5)
    for sharing in ("headwise", "key_value", "none"):
        core = af.core(f"linformer:{sharing}", heads=2, head_dim=4, max_length=n, rank=k)
        for projection in core.parameters():
            assert_close(projection.std(), ours.weight.std(), rtol=0.02, atol=0)
            assert_close(projection.abs().max(), ours.weight.abs().max(), rtol=0.01, atol=0)
    assert_close(theirs.std(), ours.weight.std() * ((n + k) / k / 3) ** 0.5, rtol=0.02, atol=0)


# What no package has: sharing over layers, which is assigning


def test_one_projection_for_all_layers():
    """Section 4, layerwise: one E for all layers, heads, keys and values."""
    torch.manual_seed(0)
    options = {"dim": DIM, "heads": HEADS, "max_length": LONGEST, "rank": RANK}
    layers = nn.ModuleList(af.build("linformer:key_value", **options) for _ in range(3)).double()
    separate = copy.deepcopy(layers)
    for layer, alone in zip(layers, separate, strict=True):
        layer.core.E = layers[0].core.E
        alone.core.load_state_dict(layers[0].core.state_dict())
    assert sum(p.shape == (RANK, LONGEST) for p in layers.parameters()) == 1  # an optimizer sees it once

    def run(stack):
        y = tokens(N)
        for layer in stack:
            y = y + layer(y)
        return y

    assert_close(run(layers), run(separate), rtol=1e-12, atol=1e-14)
    (shared,) = gradients(run(layers), [layers[0].core.E])
    assert_close(shared, sum(gradients(run(separate), [layer.core.E for layer in separate])), rtol=1e-10, atol=1e-12)

    for twin in (copy.deepcopy(layers), layers.float()):  # it stays one
        assert all(layer.core.E is twin[0].core.E for layer in twin)


def test_refusals():
    options = {"heads": HEADS, "head_dim": 4, "max_length": LONGEST}
    kind = type(af.core("linformer", **options))
    with pytest.raises(ValueError, match=r"causal=True; these can: .*softmax"):
        kind(causal=True, **options)
    with pytest.raises(ValueError, match="headwise, key_value, none"):
        kind(sharing="layerwise", **options)
    with pytest.raises(TypeError, match="max_length"):
        af.build("linformer", dim=DIM)
    core = kind(**options)
    q = torch.randn(1, HEADS, N, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="dtype"):
        core.attend(q, q, q)
