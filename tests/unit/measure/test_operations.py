"""Counted operations against numbers worked out by hand."""

from math import log2

import pytest
import torch
from torch.nn.functional import conv1d, conv2d, linear, scaled_dot_product_attention

from anyformer.measure.operations import operations

DEVICES = pytest.mark.parametrize("device", ["cpu", "meta"])


def ones(*shape, device="cpu", grad=False):
    return torch.ones(*shape, device=device, requires_grad=grad)


@DEVICES
@pytest.mark.parametrize(
    ("run", "count"),
    [
        (lambda o: o(3, 5) @ o(5, 7), 2 * 3 * 5 * 7),
        (lambda o: o(2, 4, 3, 5) @ o(2, 4, 5, 7), 2 * 8 * 3 * 5 * 7),
        (lambda o: linear(o(6, 5), o(7, 5)), 2 * 6 * 5 * 7),
        (lambda o: linear(o(6, 5), o(7, 5), o(7)), 2 * 6 * 5 * 7),
        (lambda o: torch.baddbmm(o(2, 3, 7), o(2, 3, 5), o(2, 5, 7)), 2 * 2 * 3 * 5 * 7),
        (lambda o: torch.einsum("bnd,bmd->bnm", o(2, 3, 5), o(2, 7, 5)), 2 * 2 * 3 * 5 * 7),
        (lambda o: o(3, 5) @ o(5), 2 * 3 * 5),
        (lambda o: o(5) @ o(5), 2 * 5),
        (lambda o: torch.addr(o(3, 5), o(3), o(5)), 2 * 3 * 5),
        (lambda o: torch.bmm(o(2, 3, 5), o(2, 5, 7), out=o(2, 3, 7)), 2 * 2 * 3 * 5 * 7),
        (lambda o: conv1d(o(1, 4, 10), o(6, 4, 3)), 2 * 6 * 4 * 3 * 8),
        (lambda o: conv1d(o(1, 4, 10), o(4, 1, 3), groups=4), 2 * 4 * 1 * 3 * 8),
        (lambda o: conv2d(o(2, 3, 9, 8), o(5, 3, 3, 3), stride=2), 2 * 2 * 5 * 3 * 9 * 4 * 3),
        (lambda o: o(3, 5) + o(3, 5), 15),
        (lambda o: o(3, 5).exp(), 15),
        (lambda o: o(3, 5).exp_(), 15),
        (lambda o: o(3, 5).mul_(2), 15),
        (lambda o: torch.add(o(3, 5), 1, out=o(3, 5)), 15),
        (lambda o: o(3, 5).sum(), 15),
        (lambda o: o(3, 5).amax(1), 15),
        (lambda o: torch.cat([o(3, 5), o(4, 5)]), 35),
        (lambda o: o(3, 5).t().unsqueeze(0).expand(4, 5, 3)[:, 1:], 0),
        (lambda o: o(3, 5).reshape(5, 3).transpose(0, 1), 0),
        (lambda o: torch.empty(3, 5), 0),
    ],
)
def test_an_operation_counts(run, count, device):
    inputs = []
    run(lambda *shape: inputs.append(ones(*shape, device=device)) or inputs[-1])  # making the ones costs nothing
    made = iter(inputs)
    with torch.no_grad():
        assert operations(lambda: run(lambda *shape: next(made))) == count


@DEVICES
@pytest.mark.parametrize("length", [8, 12, 64])
def test_a_fourier_transform_is_5_n_log_n(device, length):
    x = ones(3, length, device=device)
    assert operations(lambda: torch.fft.fft(x.to(torch.complex64))) == 3 * length + int(5 * 3 * length * log2(length))
    assert operations(lambda: torch.fft.rfft(x)) == int(5 * 3 * length * log2(length))
    square = ones(length, length, device=device).to(torch.complex64)
    assert operations(lambda: torch.fft.fft2(square)) == int(5 * length**2 * log2(length**2))


@DEVICES
@pytest.mark.parametrize(
    ("queries", "keys", "causal", "pairs"),
    [(6, 6, False, 36), (4, 9, False, 36), (6, 6, True, 21), (9, 4, True, 10 + 5 * 4), (4, 9, True, 10)],
)
def test_fused_attention_counts_the_pairs_that_meet(device, queries, keys, causal, pairs):
    q, k, v = (
        ones(2, 3, queries, 8, device=device),
        ones(2, 3, keys, 8, device=device),
        ones(2, 3, keys, 8, device=device),
    )
    assert operations(lambda: scaled_dot_product_attention(q, k, v, is_causal=causal)) == 2 * 3 * pairs * 2 * (8 + 8)


@DEVICES
@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_backward_has_five_products(device, causal):
    q, k, v = (ones(2, 3, 6, 8, device=device, grad=True) for _ in range(3))
    pairs = 2 * 3 * (21 if causal else 36)

    def forward():
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    upstream = ones(2, 3, 6, 8, device=device)
    both = operations(lambda: torch.autograd.grad(forward(), (q, k, v), upstream))
    assert both == pairs * 2 * (2 * 8 + 5 * 8)


@DEVICES
def test_a_product_has_two_in_its_backward_pass(device):
    a, b = ones(3, 5, device=device, grad=True), ones(5, 7, device=device, grad=True)
    upstream = ones(3, 7, device=device)
    assert operations(lambda: torch.autograd.grad(a @ b, (a, b), upstream)) == 3 * 2 * 3 * 5 * 7


def test_inference_mode_counts_the_same():
    a, b, bias = ones(2, 3, 5), ones(7, 5), ones(7)

    def run():
        return linear(a, b, bias).softmax(-1)

    plain = operations(run)
    with torch.inference_mode():
        assert operations(run) == plain


def test_meta_computes_nothing_and_counts_what_the_cpu_does():
    def layer(device):
        block = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 48)).to(device)

        def run():
            q, k, v = block(x).unflatten(-1, (6, 8)).transpose(1, 2).chunk(3, 1)
            scaled_dot_product_attention(q, k, v, is_causal=True).square().mean().backward()

        x = ones(2, 9, 16, device=device, grad=True)
        return run

    assert operations(layer("meta")) == operations(layer("cpu")) > 0


def test_counting_leaves_results_alone():
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    found = []
    operations(lambda: found.append(a @ b))
    assert torch.equal(found[0], a @ b)
    assert operations(lambda: None) == 0
