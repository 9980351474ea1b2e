"""Peaks of allocation patterns that are known beforehand."""

import pytest
import torch

from anyformer.measure.memory import peak_bytes

MB = 1 << 20


def megabytes(count):
    return torch.empty(count * MB, dtype=torch.uint8)


def one():
    megabytes(8)


def one_after_the_other():
    for _ in range(4):
        megabytes(8)


def side_by_side():
    held = [megabytes(8) for _ in range(4)]
    assert len(held) == 4


def hill():
    a = megabytes(4)
    b = megabytes(10)
    del a
    c = megabytes(3)
    del b, c
    megabytes(12)


def views():
    a = megabytes(8)
    assert a[: MB // 2].view(2, -1).shape[0] == 2


def inside_a_product():
    a = torch.ones(1024, 1024)  # 4 MB each
    assert (a @ a).shape == a.shape


@pytest.mark.parametrize(
    ("run", "expected"),
    [(one, 8), (one_after_the_other, 8), (side_by_side, 32), (hill, 14), (views, 8), (inside_a_product, 8)],
)
def test_the_peak_of_a_known_pattern(run, expected):
    assert peak_bytes(run) == pytest.approx(expected * MB, rel=0.03)


def test_nothing_allocated_is_nothing():
    held = megabytes(8)
    assert peak_bytes(lambda: held.fill_(1)) < MB // 100


def test_what_was_held_before_does_not_count():
    before = megabytes(64)
    assert peak_bytes(one) == pytest.approx(8 * MB, rel=0.03)
    assert before.numel() == 64 * MB


def test_a_backward_pass_counts_its_gradients():
    x = torch.ones(MB, requires_grad=True)  # 4 MB
    upstream = torch.ones(MB)
    peak = peak_bytes(lambda: torch.autograd.grad(x.exp(), x, upstream))
    assert peak == pytest.approx(8 * MB, rel=0.03)  # exp(x), kept for the way back, and the gradient
