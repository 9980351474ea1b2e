"""Linear attention against performer-pytorch's and linear-attention-transformer's linear attention."""

import pytest
import torch
from torch.testing import assert_close

import anyformer as af

B, H, D = 2, 3, 5

pytestmark = [
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:performer_pytorch"),
    pytest.mark.filterwarnings("ignore::FutureWarning:linear_attention_transformer"),
]


@pytest.fixture(scope="module")
def performer():
    return pytest.importorskip("performer_pytorch.performer_pytorch")


@pytest.fixture(scope="module")
def causal_linear_attn():
    return pytest.importorskip("linear_attention_transformer.linear_attention_transformer").causal_linear_attn


def phi(x):
    return torch.nn.functional.elu(x) + 1


def inverse_of_phi(y):
    return torch.where(y < 1, y.log(), y - 1)


def qkv(queries, keys=None, value_dim=D, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = (queries, D), (keys or queries, D), (keys or queries, value_dim)
    return [torch.randn(B, H, *s, generator=draw, dtype=torch.float64, requires_grad=True) for s in shapes]


def gradients(y, tensors):
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape).sin()
    return torch.autograd.grad((y * weights).sum(), tensors)


def assert_same(got, expected, tensors, rtol=1e-9, atol=1e-11):
    assert_close(got, expected, rtol=rtol, atol=atol)
    for a, b in zip(gradients(got, tensors), gradients(expected, tensors), strict=True):
        assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (9, 9), (4, 700), (700, 4)])
def test_performer_full(performer, queries, keys):
    q, k, v = qkv(queries, keys, value_dim=4)
    expected = performer.linear_attention(phi(q), phi(k), v)
    assert_same(af.core("linear", heads=H, head_dim=D).attend(q, k, v), expected, (q, k, v))


@pytest.mark.parametrize("length", [1, 9, 127, 128, 129, 300])
def test_performer_causal(performer, length):
    """Theirs adds an epsilon to every sum of key features; without it the two are the same function."""
    q, k, v = qkv(length, value_dim=4)
    expected = performer.causal_linear_attention_noncuda(phi(q), phi(k), v, eps=0)
    assert_same(af.core("linear", heads=H, head_dim=D, causal=True).attend(q, k, v), expected, (q, k, v))


def test_performer_causal_as_shipped(performer):
    """With its epsilon of 1e-6 the denominator grows by a factor of at most 1 + 1e-6 / (smallest sum of features)."""
    q, k, v = qkv(200)
    got = af.core("linear", heads=H, head_dim=D, causal=True).attend(q, k, v)
    expected = performer.causal_linear_attention_noncuda(phi(q), phi(k), v)
    bound = 1e-6 / phi(k).cumsum(2).amin(-1, keepdim=True)
    off = (got - expected).abs()
    assert (off <= 1.01 * bound * got.abs() + 1e-14).all()
    assert off.max() > 1e-9  # the epsilon is really there


# linear-attention-transformer


def literal_causal_linear_attn(q, k, v, bucket_size, keep=None, eps=1e-3):
    """What their function computes, as one N x N product.

    It is not Katharopoulos et al.: queries go through a softmax over D and keys through an exponential, where the
    paper has elu + 1 on both; the denominator is clamped from below; and with buckets of more than one token a query
    sees only EARLIER buckets, so neither its own token nor its neighbours (their "blind spot"), and the first bucket
    gives zeros. Only buckets of one token leave the paper's j <= i.
    """
    length = q.shape[2]
    fq, fk = q.softmax(-1) * q.shape[3] ** -0.5, k.exp()
    bucket = torch.arange(length) // bucket_size
    sees = bucket[:, None] > bucket[None] if bucket_size > 1 else bucket[:, None] >= bucket[None]
    weight = fq @ fk.transpose(-1, -2) * sees
    if keep is not None:
        weight = weight * keep[:, None, None, :]
    return weight @ v / weight.sum(-1, keepdim=True).clamp(min=eps)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("shift", [0, -8], ids=["plain", "clamped"])
@pytest.mark.parametrize("bucket_size", [1, 4, 12])
def test_what_linear_attention_transformer_computes(causal_linear_attn, bucket_size, shift, padded):
    q, k, v = qkv(24)
    keep = torch.rand(B, 24, generator=torch.Generator().manual_seed(3)) < 0.7 if padded else None
    expected = literal_causal_linear_attn(q, k + shift, v, bucket_size, keep)
    got = causal_linear_attn(q, k + shift, v.clone(), kv_mask=keep, bucket_size=bucket_size)  # it writes into v
    assert_same(got, expected, (q, k, v))


@pytest.mark.parametrize("length", [1, 128, 130])
def test_linear_attention_transformer_on_our_features(causal_linear_attn, length):
    """Buckets of one token are our causal form, once phi gives back their features."""
    q, k, v = qkv(length)
    core = af.core("linear", heads=H, head_dim=D, causal=True)
    got = core.attend(inverse_of_phi(q.softmax(-1)), inverse_of_phi(k.exp()), v)
    assert_same(got, causal_linear_attn(q, k, v, bucket_size=1), (q, k, v))


def test_linear_attention_transformer_buckets_on_our_features(causal_linear_attn):
    """Buckets of more tokens are our form without order: each bucket attends to all the keys before it."""
    size, length = 4, 12
    q, k, v = qkv(length)
    core = af.core("linear", heads=H, head_dim=D)
    fq, fk = inverse_of_phi(q.softmax(-1)), inverse_of_phi(k.exp())
    buckets = [torch.zeros(B, H, size, D, dtype=q.dtype)]  # nothing comes before the first
    buckets += [core.attend(fq[:, :, at : at + size], fk[:, :, :at], v[:, :, :at]) for at in range(size, length, size)]
    assert_same(torch.cat(buckets, 2), causal_linear_attn(q, k, v, bucket_size=size), (q, k, v))
