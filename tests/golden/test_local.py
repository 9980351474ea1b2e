"""Local attention against the local-attention package and Hugging Face's Longformer."""

import pytest
import torch
from torch.testing import assert_close

import anyformer as af

B, H, D = 2, 3, 4

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:local_attention"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


@pytest.fixture(scope="module")
def local_attention():
    """Theirs keeps |i - j| <= window_size where ours keeps |i - j| < window."""
    package = pytest.importorskip("local_attention")

    def make(window, causal, **options):
        options = {"exact_windowsize": True, "autopad": True, "use_rotary_pos_emb": False, **options}
        theirs = package.LocalAttention(window_size=window - 1, causal=causal, **options)
        return theirs, af.core("local", heads=H, head_dim=D, causal=causal, window=window)

    return make


def qkv(length, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(B, H, length, D, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def gradients(y, tensors):
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape).sin()
    return torch.autograd.grad((y * weights).sum(), tensors)


def assert_same(got, expected, tensors):
    assert_close(got, expected, rtol=1e-9, atol=1e-11)
    for a, b in zip(gradients(got, tensors), gradients(expected, tensors), strict=True):
        assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("length", [1, 7, 64, 65, 150])
@pytest.mark.parametrize("window", [2, 6, 71])
def test_causal(local_attention, window, length):
    theirs, ours = local_attention(window, causal=True)
    q, k, v = qkv(length)
    assert_same(ours.attend(q, k, v), theirs(q, k, v), (q, k, v))


@pytest.mark.parametrize("length", [10, 130])
@pytest.mark.parametrize("window", [3, 6])
def test_both_sides(local_attention, window, length):
    """Lengths that their windows divide, so that autopad has nothing to do."""
    theirs, ours = local_attention(window, causal=False, look_forward=1)
    assert length % (window - 1) == 0
    q, k, v = qkv(length)
    assert_same(ours.attend(q, k, v), theirs(q, k, v), (q, k, v))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("length", [7, 64, 97])
def test_padding(local_attention, length, causal):
    """Theirs gives a query that sees no key the mean of masked values; ours gives zero, as everywhere."""
    theirs, ours = local_attention(5, causal=causal)
    q, k, v = qkv(length)
    keep = torch.rand(B, length, generator=torch.Generator().manual_seed(1)) < 0.3
    near = torch.arange(length)[:, None] - torch.arange(length)[None]
    near = (near.abs() < 5) & (near >= 0) if causal else near.abs() < 5
    sees = (near & keep[:, None]).any(-1)[:, None, :, None]
    assert (length < 20) or not sees.all()
    got = ours.attend(q, k, v, keep)
    assert not got.masked_select(~sees).any()
    assert_same(got * sees, theirs(q, k, v, mask=keep) * sees, (q, k, v))


def test_their_padding_without_a_mask(local_attention):
    """Without causal order and without a mask, their autopad adds keys of zeros that the last queries see.

    The paper knows no such keys. A mask of ones hides them and brings the two together again.
    """
    theirs, ours = local_attention(5, causal=False)
    q, k, v = qkv(10)
    whole = torch.ones(B, 10, dtype=torch.bool)
    assert_same(ours.attend(q, k, v), theirs(q, k, v, mask=whole), (q, k, v))

    to_12 = [torch.nn.functional.pad(t, (0, 0, 0, 2)) for t in (q, k, v)]
    unmasked = theirs(q, k, v)
    assert_same(ours.attend(*to_12)[:, :, :10], unmasked, (q, k, v))
    assert (unmasked - ours.attend(q, k, v)).abs().amax((0, 1, 3))[6:].min() > 1e-3


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_hugging_face_longformer(padded):
    """Their attention_window of w is w / 2 on each side: our w / 2 + 1. Their softmax is in float32, and they give
    zeros to padded queries."""
    longformer = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    config = longformer.LongformerConfig(
        hidden_size=H * D, num_attention_heads=H, attention_window=[8], attention_probs_dropout_prob=0.0
    )
    torch.manual_seed(0)
    theirs = longformer.LongformerSelfAttention(config, layer_id=0)
    ours = af.build("local", dim=H * D, heads=H, window=5, bias=True)
    with torch.no_grad():
        for mine, other in ((ours.q, theirs.query), (ours.k, theirs.key), (ours.v, theirs.value)):
            mine.weight.copy_(other.weight.normal_(std=0.4))
            mine.bias.copy_(other.bias.normal_(std=0.4))
        ours.out.weight.copy_(torch.eye(H * D))
        ours.out.bias.zero_()
    x = torch.randn(B, 24, H * D, requires_grad=True)
    keep = torch.arange(24)[None] < torch.tensor([[24], [17]]) if padded else torch.ones(B, 24, dtype=torch.bool)
    expected, *_ = theirs(
        x,
        attention_mask=(~keep).float() * -10000,
        is_index_masked=~keep,
        is_index_global_attn=torch.zeros_like(keep),
        is_global_attn=False,
    )
    got = ours(x, keep=keep if padded else None) * keep[:, :, None]
    assert_close(got, expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(
        gradients(got, (x, ours.q.weight, ours.k.weight, ours.v.weight)),
        gradients(expected, (x, theirs.query.weight, theirs.key.weight, theirs.value.weight)),
        strict=True,
    ):
        assert_close(a, b, rtol=1e-3, atol=1e-4)
