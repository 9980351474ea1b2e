"""What the laws say when they find something: every check raises AssertionError with the numbers."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def near(found: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9, *, least: float = 1.0) -> None:
    """Equal up to a tolerance relative to the largest expected value, or to `least` if that is larger."""
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    found, expected = found.detach().double(), expected.detach().double()
    assert found.isfinite().all(), f"{what}: {int((~found.isfinite()).sum())} values are not finite"
    if expected.numel():
        allowed = tolerance * max(least, expected.abs().max().item())
        worst = (found - expected).abs().max().item()
        assert worst <= allowed, f"{what}: off by {worst:.2g}"


def same(found: Tensor, expected: Tensor, what: str) -> None:
    """Equal bit by bit."""
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    differs = ~((found == expected) | (found.isnan() & expected.isnan()))
    if differs.any():
        worst = (found - expected).abs().max().item()
        raise AssertionError(f"{what}: {int(differs.sum())} values changed, by up to {worst:.2g}")


def gradients(y: Tensor, weight: Tensor | None, inputs: Iterable[Tensor], *, again: bool = False) -> list[Tensor]:
    """Of (y * weight).sum(), or of y.sum() when weight is None; zero for what y does not depend on."""
    wanted = list(inputs)
    total = y.sum() if weight is None else (y * weight).sum()
    if not total.requires_grad:
        return [torch.zeros_like(t) for t in wanted]
    found = torch.autograd.grad(total, wanted, allow_unused=True, retain_graph=again)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]


def replaced(x: Tensor, where: Any, values: Tensor) -> Tensor:
    """Other values in part of a tensor, in the same layout: another one may round otherwise."""
    other = x.detach().clone()
    other[where] = values.detach()
    return other


def parameters(module: Any) -> list[Tensor]:
    return [p for p in module.parameters() if p.requires_grad] if isinstance(module, nn.Module) else []


def paddings(length: int) -> dict[str, Tensor]:
    """Masks for a batch of two, True at real tokens."""
    third = max(1, length // 3)
    real = torch.ones(2, length, dtype=torch.bool)
    masks = {name: real.clone() for name in ("right", "left", "middle", "a whole row")}
    masks["right"][0, -third:] = False
    masks["left"][0, :third] = False
    masks["middle"][0, third : 2 * third] = False
    masks["middle"][1, ::3] = False
    masks["a whole row"][0] = False
    return masks


def raises(call: Any, kinds: tuple[type[Exception], ...], what: str, words: Sequence[str] = ()) -> None:
    """The call is refused with one of these exceptions and a message that names these words."""
    try:
        call()
    except kinds as refusal:
        message = str(refusal)
        assert len(message) > 20, f"{what}: refused, but only says {message!r}"
        for word in words:
            assert word in message, f"{what}: the refusal does not say {word!r}: {message}"
        return
    except Exception as wrong:
        raise AssertionError(
            f"{what}: {type(wrong).__name__} ({wrong}) from inside instead of a clear refusal"
        ) from wrong
    raise AssertionError(f"{what}: silently accepted")
