"""What the laws do not say of local attention: that its cost is exactly linear, and what it saves."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import anyformer as af
from anyformer.measure.operations import operations

CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def core(causal, window=16):
    return af.core("local", heads=2, head_dim=8, causal=causal, window=window)


def qkv(length, needs=(True, True, True), device="cpu"):
    drawn = torch.Generator().manual_seed(0)
    made = [torch.randn(1, 2, length, 8, generator=drawn, dtype=torch.float64) for _ in range(3)]
    return [t.to(device).requires_grad_(need) for t, need in zip(made, needs, strict=True)]


@CAUSAL
@pytest.mark.parametrize("window", [1, 16, 100])
def test_operations_are_exactly_linear_in_length(causal, window):
    """Between lengths of whole blocks, each block more costs the same, forward and backward."""
    rows = 64
    forward, step = [], []
    for blocks in (12, 13, 14, 24):
        inputs = qkv(blocks * rows, device="meta")
        with torch.no_grad():
            forward.append(operations(lambda inputs=inputs: core(causal, window).attend(*inputs)))
        step.append(operations(lambda inputs=inputs: core(causal, window).attend(*inputs).sum().backward()))
    for counts in (forward, step):
        block = counts[1] - counts[0]
        assert block > 0
        assert counts[2] - counts[1] == block
        assert counts[3] - counts[2] == 10 * block


def test_a_window_costs_what_it_sees_and_no_more_than_its_blocks():
    """Causal: a block of 64 rows meets 64 + window - 1 keys, in two products."""
    with torch.no_grad():
        counts = [operations(lambda n=n: core(True).attend(*qkv(n * 64, device="meta"))) for n in (8, 9)]
    products = 2 * 2 * 64 * (64 + 15) * (8 + 8)
    assert products <= counts[1] - counts[0] <= 1.2 * products


@CAUSAL
def test_only_inputs_and_outputs_are_saved(causal):
    saved = []
    with saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        core(causal).attend(*qkv(700))
    assert sum(saved) == 4 * 700 * 2 * 8


@CAUSAL
@pytest.mark.parametrize("needs", [(False, False, True), (True, False, False), (False, True, True)])
def test_gradients_are_worked_out_only_where_needed(causal, needs):
    inputs, every = qkv(200, needs), qkv(200)
    core(causal).attend(*inputs).square().sum().backward()
    core(causal).attend(*every).square().sum().backward()
    for t, full, need in zip(inputs, every, needs, strict=True):
        assert (t.grad is not None) == need
        if need:
            torch.testing.assert_close(t.grad, full.grad)


@CAUSAL
def test_a_second_derivative_is_refused(causal):
    q, k, v = qkv(9)
    (gradient,) = torch.autograd.grad(core(causal).attend(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="marked with @once_differentiable"):
        gradient.sum().backward()


@CAUSAL
def test_a_window_of_one_is_the_value_itself(causal):
    q, k, v = qkv(70)
    torch.testing.assert_close(core(causal, 1).attend(q, k, v), v)


@pytest.mark.parametrize("window", [2**62, 2**63 - 1])
@CAUSAL
def test_a_huge_window_is_softmax(causal, window):
    q, k, v = qkv(70)
    softmax = af.core("softmax", heads=2, head_dim=8, causal=causal)
    torch.testing.assert_close(core(causal, window).attend(q, k, v), softmax.attend(q, k, v))
