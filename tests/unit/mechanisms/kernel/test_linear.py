"""What the laws do not say of linear attention: what it saves, when it works and at which precision."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import anyformer as af
from anyformer.measure.memory import peak_bytes
from anyformer.measure.operations import operations

CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
HEADS, DIM = 2, 32


def core(causal):
    return af.core("linear", heads=HEADS, head_dim=DIM, causal=causal)


def qkv(length, needs=(True, True, True), dtype=torch.float64, batch=2, device="cpu"):
    drawn = torch.Generator().manual_seed(0)
    made = [torch.randn(batch, HEADS, length, DIM, generator=drawn, dtype=torch.float64) for _ in range(3)]
    return [t.to(device, dtype).requires_grad_(need) for t, need in zip(made, needs, strict=True)]


def saved_elements(causal, length):
    saved = []
    with saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        core(causal).attend(*qkv(length, batch=1, dtype=torch.float32))
    return sum(saved)


@CAUSAL
def test_saved_memory_is_linear_in_length(causal):
    one, two, three = (saved_elements(causal, length) for length in (1024, 2048, 3072))
    assert three - two == pytest.approx(two - one, rel=0.02)
    sums = DIM * (DIM + 1) / 128 if causal else 0  # one state for each block of 128 rows
    assert (two - one) / 1024 <= HEADS * (4 * DIM + 1 + sums) + 1  # q, k, v, y, 1 / den; a one
    assert two < 2048 * HEADS * DIM**2 / 4


@CAUSAL
def test_nothing_is_saved_when_nothing_is_learned(causal):
    saved = []
    with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t), torch.no_grad():
        core(causal).attend(*qkv(300))
    assert not saved


@CAUSAL
def test_nothing_but_the_result_grows_when_nothing_is_learned(causal):
    def peak(length):
        inputs = qkv(length, (False,) * 3, torch.float32)
        with torch.no_grad():
            return peak_bytes(lambda: core(causal).attend(*inputs))

    result = 4 * 2 * 2048 * HEADS * (DIM + 1)  # y and 1 / den
    assert peak(4096) - peak(2048) == pytest.approx(result, rel=0.05)


@CAUSAL
@pytest.mark.parametrize(
    "needs", [(False, False, True), (True, False, False), (False, True, False), (True, False, True)]
)
def test_gradients_are_worked_out_only_where_needed(causal, needs):
    def step(needs, device="cpu"):
        inputs = qkv(300, needs, device=device)
        y = core(causal).attend(*inputs)
        upstream = torch.ones_like(y)
        wanted = [t for t in inputs if t.requires_grad]
        return lambda: torch.autograd.grad(y, wanted, upstream)

    found = step(needs)()
    everything = step((True, True, True))()
    expected = [g for g, need in zip(everything, needs, strict=True) if need]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert operations(step(needs, "meta")) < operations(step((True, True, True), "meta"))


@CAUSAL
def test_a_second_derivative_is_refused(causal):
    q, k, v = qkv(9)
    (gradient,) = torch.autograd.grad(core(causal).attend(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="marked with @once_differentiable"):
        gradient.sum().backward()


@CAUSAL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_in_float32_under_autocast(causal, dtype):
    q, k, v = qkv(300, dtype=torch.float32)
    plain = core(causal).attend(q, k, v)
    expected = torch.autograd.grad(plain.square().sum(), (q, k, v))
    with torch.autocast("cpu", dtype=dtype):
        y = core(causal).attend(q, k, v)
        found = torch.autograd.grad(y.square().sum(), (q, k, v))
    assert torch.equal(y, plain)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@CAUSAL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats_come_back_as_they_went_in(causal, dtype):
    inputs = qkv(300, dtype=dtype)
    y = core(causal).attend(*inputs)
    assert y.dtype == dtype
    y.sum().backward()
    assert all(t.grad.dtype == dtype for t in inputs)
    wide = core(causal).attend(*(t.detach().double() for t in inputs))
    torch.testing.assert_close(y.double(), wide, rtol=1e-2, atol=1e-2)  # rounded once, at the end


@CAUSAL
def test_a_layer_under_autocast_gives_short_floats(causal):
    layer = af.build("linear", dim=16, heads=2, causal=causal)
    x = torch.randn(2, 9, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)


def test_the_state_is_float32_for_short_floats():
    layer = af.build("linear", dim=16, heads=2, causal=True).bfloat16()
    with torch.no_grad():
        _, state = layer.stream(torch.randn(1, 3, 16).bfloat16(), layer.start(1))
    assert {t.dtype for t in state if isinstance(t, torch.Tensor)} == {torch.float32}


@CAUSAL
def test_a_step_is_counted_as_linear(causal):
    counts = []
    for length in (1024, 2048, 3072):
        inputs = qkv(length, device="meta", dtype=torch.float32)
        counts.append(operations(lambda inputs=inputs: core(causal).attend(*inputs).sum().backward()))
    assert counts[1] > counts[0]
    assert counts[2] - counts[1] == pytest.approx(counts[1] - counts[0], rel=0.001)
