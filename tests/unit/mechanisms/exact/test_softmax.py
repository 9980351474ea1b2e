"""Softmax is torch's fused attention, bit by bit."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import anyformer as af
from anyformer.parts.masks import seen


def qkv(queries=33, keys=33, dtype=torch.float32):
    drawn = torch.Generator().manual_seed(0)
    shapes = ((2, 4, queries, 16), (2, 4, keys, 16), (2, 4, keys, 16))
    return [torch.randn(shape, generator=drawn).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_softmax_is_fused_attention(causal, dtype):
    q, k, v = qkv(dtype=dtype)
    found = af.core("softmax", heads=4, head_dim=16, causal=causal).attend(q, k, v)
    assert torch.equal(found, scaled_dot_product_attention(q, k, v, is_causal=causal))


@pytest.mark.parametrize("causal", [False, True])
def test_padded_softmax_is_fused_attention_under_a_mask(causal):
    q, k, v = qkv()
    keep = torch.ones(2, 33, dtype=torch.bool)
    keep[0, 20:] = False
    found = af.core("softmax", heads=4, head_dim=16, causal=causal).attend(q, k, v, keep)
    sees = seen(33, 33, causal=causal, device=q.device, keep_BM=keep)
    padded = ~keep[:, None, :, None]
    zeroed = [t.masked_fill(padded, 0) for t in (k, v)]
    torch.testing.assert_close(found, scaled_dot_product_attention(q, *zeroed, sees), rtol=0, atol=0)


@pytest.mark.parametrize("queries", [1, 5])
def test_few_causal_queries_are_the_last_ones(queries):
    """Torch's own is_causal would take them for the first."""
    q, k, v = qkv(dtype=torch.float64)
    core = af.core("softmax", heads=4, head_dim=16, causal=True)
    last = core.attend(q[:, :, -queries:], k, v)
    torch.testing.assert_close(last, core.attend(q, k, v)[:, :, -queries:])
    if queries > 1:
        first = scaled_dot_product_attention(q[:, :, -queries:], k, v, is_causal=True)
        assert not torch.allclose(last, first)


def test_values_may_have_another_width():
    q, k, v = qkv()
    core = af.core("softmax", heads=4, head_dim=16)
    assert torch.equal(core.attend(q, k, v[..., :5]), scaled_dot_product_attention(q, k, v[..., :5]))
