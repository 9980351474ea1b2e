"""Softmax attention against torch's own module and Hugging Face's eager GPT-2 and Llama attention."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import anyformer as af

DIM, HEADS, B, N, M = 24, 4, 3, 7, 11

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


def gradients(y, tensors):
    """Of a loss that tells every output from every other."""
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape).sin()
    return torch.autograd.grad((y * weights).sum(), tensors)


def right_padding(batch, length):
    """The first item is whole, each later one loses two tokens more."""
    return torch.arange(length)[None] < length - 2 * torch.arange(batch)[:, None]


def additive(sees, dtype):
    return torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
def test_torch_multihead_attention(bias, causal, cross, padded):
    torch.manual_seed(0)
    ours = af.build("softmax", dim=DIM, heads=HEADS, causal=causal, bias=bias).double()
    theirs = nn.MultiheadAttention(DIM, HEADS, bias=bias, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.4)
        for part, weight in zip((ours.q, ours.k, ours.v), theirs.in_proj_weight.chunk(3), strict=True):
            part.weight.copy_(weight)
        ours.out.weight.copy_(theirs.out_proj.weight)
        if bias:
            for part, b in zip((ours.q, ours.k, ours.v), theirs.in_proj_bias.chunk(3), strict=True):
                part.bias.copy_(b)
            ours.out.bias.copy_(theirs.out_proj.bias)

    x = torch.randn(B, N, DIM, dtype=torch.float64, requires_grad=True)
    context = torch.randn(B, M, DIM, dtype=torch.float64, requires_grad=True) if cross else None
    keys = M if cross else N
    keep = right_padding(B, keys) if padded else None
    hidden = torch.ones(N, keys).tril(keys - N) == 0 if causal else None  # the queries are the last positions

    source = x if context is None else context
    expected, _ = theirs(
        x, source, source, key_padding_mask=None if keep is None else ~keep, attn_mask=hidden, need_weights=False
    )
    got = ours(x, context, keep=keep)
    if keep is not None and not cross:  # what padded tokens say themselves is nobody's business: zeros come in here
        expected, got = (y * keep[:, :, None] for y in (expected, got))
    assert_close(got, expected, rtol=1e-10, atol=1e-12)

    inputs = [x] if context is None else [x, context]
    mine = [getattr(ours, part).weight for part in ("q", "k", "v", "out")]
    got_x = gradients(got, [*inputs, *mine])
    expected_x = gradients(expected, [*inputs, theirs.in_proj_weight, theirs.out_proj.weight])
    for a, b in zip(got_x[: len(inputs)], expected_x[: len(inputs)], strict=True):
        assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert_close(torch.cat(got_x[-4:-1]), expected_x[-2], rtol=1e-9, atol=1e-11)
    assert_close(got_x[-1], expected_x[-1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_hugging_face_llama(key_heads, padded):
    """Without rotation (cos 1, sin 0). Their softmax is in float32 whatever comes in, hence the tolerance."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=key_heads, attn_implementation="eager"
    )
    torch.manual_seed(1)
    theirs = llama.LlamaAttention(config, layer_idx=0)
    ours = af.build("softmax", dim=DIM, heads=HEADS, causal=True, key_heads=key_heads)
    pairs = [(ours.q, theirs.q_proj), (ours.k, theirs.k_proj), (ours.v, theirs.v_proj), (ours.out, theirs.o_proj)]
    with torch.no_grad():
        for mine, other in pairs:
            mine.weight.copy_(other.weight.normal_(std=0.4))

    x = torch.randn(B, N, DIM, requires_grad=True)
    keep = right_padding(B, N) if padded else torch.ones(B, N, dtype=torch.bool)
    sees = torch.ones(N, N, dtype=torch.bool).tril() & keep[:, None, None, :]
    still = torch.ones(1, N, DIM // HEADS), torch.zeros(1, N, DIM // HEADS)
    expected, _ = theirs(x, position_embeddings=still, attention_mask=additive(sees, x.dtype))
    got = ours(x, keep=keep if padded else None)
    expected, got = (y * keep[:, :, None] for y in (expected, got))
    assert_close(got, expected, rtol=1e-4, atol=1e-5)
    got_all = gradients(got, [x, *(mine.weight for mine, _ in pairs)])
    expected_all = gradients(expected, [x, *(other.weight for _, other in pairs)])
    for a, b in zip(got_all, expected_all, strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cross", [False, True], ids=["causal-self", "cross"])
def test_hugging_face_gpt2(cross):
    gpt2 = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    config = gpt2.GPT2Config(n_embd=DIM, n_head=HEADS, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation="eager")
    torch.manual_seed(2)
    theirs = gpt2.GPT2Attention(config, is_cross_attention=cross, layer_idx=0).double()
    ours = af.build("softmax", dim=DIM, heads=HEADS, causal=not cross, bias=True).double()
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.4)
        weights, biases = list(theirs.c_attn.weight.T.chunk(2 + (not cross))), list(theirs.c_attn.bias.chunk(3 - cross))
        if cross:
            weights.insert(0, theirs.q_attn.weight.T)
            biases.insert(0, theirs.q_attn.bias)
        parts = ours.q, ours.k, ours.v, ours.out
        for part, w, b in zip(parts, [*weights, theirs.c_proj.weight.T], [*biases, theirs.c_proj.bias], strict=True):
            part.weight.copy_(w)
            part.bias.copy_(b)

    x = torch.randn(B, N, DIM, dtype=torch.float64, requires_grad=True)
    context = torch.randn(B, M, DIM, dtype=torch.float64, requires_grad=True)
    if cross:
        keep = right_padding(B, M)
        mask = additive(keep[:, None, None, :], x.dtype)
        expected = theirs(x, encoder_hidden_states=context, encoder_attention_mask=mask)[0]
        got, inputs = ours(x, context, keep=keep), [x, context]
    else:
        mask = additive(torch.ones(1, 1, N, N, dtype=torch.bool).tril(), x.dtype)
        expected = theirs(x, attention_mask=mask)[0]
        got, inputs = ours(x), [x]
    assert_close(got, expected, rtol=1e-10, atol=1e-12)
    *got_x, got_out = gradients(got, [*inputs, ours.out.weight])
    *expected_x, expected_out = gradients(expected, [*inputs, theirs.c_proj.weight])
    for a, b in zip([*got_x, got_out.T], [*expected_x, expected_out], strict=True):
        assert_close(a, b, rtol=1e-9, atol=1e-11)
