"""Law 3: padding is as if it were not there, whatever stands in its place, NaN included."""

import torch
from torch import Tensor

from anyformer.laws.evidence import gradients, near, paddings, parameters, same
from anyformer.laws.subject import Subject


def claimed(subject: Subject) -> bool:
    return subject.card.padding


def check(subject: Subject) -> None:
    length = subject.card.block + 5
    for causal in subject.orders:
        for training in subject.trainings:
            layer = subject.layer(causal, training=training)
            x = subject.tokens(2, length)
            for where, keep in paddings(length).items():
                what = f"causal={causal}, training={training}, padded {where}"
                garbage_is_nothing(layer, x, keep, what)
                garbage_is_nothing(layer, x[:1], keep[:1], f"{what}, batch of one")
            shorter_is_equal(layer, x, f"causal={causal}, training={training}")
            if not subject.card.order:
                removed_is_equal(layer, x, causal, f"causal={causal}, training={training}")
            nothing_seen(subject, layer, x, causal)
            if subject.card.cross and not causal:
                context, keep = subject.tokens(2, length + 4, seed=2), paddings(length + 4)["right"]
                padded = layer(x[:1], context[:1], keep=keep[:1])
                near(padded, layer(x[:1], context[:1, keep[0]]), "padding of a context, compared with removing it")


def garbage_is_nothing(layer: torch.nn.Module, x: Tensor, keep: Tensor, what: str) -> None:
    """Zeros, large numbers and NaN at padded positions: the same outputs and gradients."""
    seen = []
    for garbage in (0.0, 1e4, float("nan")):
        tokens = x.masked_fill(~keep[:, :, None], garbage).requires_grad_()
        y = layer(tokens, keep=keep)
        weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        real = y[keep]
        found = gradients(real, weight[keep], [tokens, *parameters(layer)])
        seen.append([real, *found])
        assert all(t.isfinite().all() for t in seen[-1]), f"{what}: not finite when {garbage} stands there"
        none = torch.zeros_like(found[0][~keep])
        same(found[0][~keep], none, f"{what}: the gradient at padded positions")
    for other in seen[1:]:
        for found_now, expected in zip(other, seen[0], strict=True):
            near(found_now, expected, f"{what}: what stands at padded positions matters", 1e-12)


def shorter_is_equal(layer: torch.nn.Module, x: Tensor, what: str) -> None:
    """Padding on the right equals the shorter input, alone or in a batch."""
    short = x.shape[1] - x.shape[1] // 3
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[0, short:] = False
    alone = layer(x[:1, :short])
    near(layer(x, keep=keep)[:1, :short], alone, f"{what}: padding on the right, compared with the shorter input")
    near(layer(x[:1], keep=keep[:1])[:, :short], alone, f"{what}: the same in a batch of one")


def removed_is_equal(layer: torch.nn.Module, x: Tensor, causal: bool, what: str) -> None:
    """Where positions do not matter, padding anywhere equals removing it."""
    for where, keep in paddings(x.shape[1]).items():
        if keep[0].any():
            y, alone = layer(x, keep=keep)[:1, keep[0]], layer(x[:1, keep[0]])
            near(y, alone, f"{what}: padded {where}, compared with removing it")


def nothing_seen(subject: Subject, layer: torch.nn.Module, x: Tensor, causal: bool) -> None:
    """A row without real tokens gives zeros before the out projection, and does not spoil gradients."""
    keep = paddings(x.shape[1])["a whole row"]
    x = x.clone().requires_grad_()
    y = layer(x, keep=keep)
    assert y.isfinite().all(), f"causal={causal}: a fully padded row gives values that are not finite"
    for gradient in gradients(y, None, [x, *parameters(layer)]):
        assert gradient.isfinite().all(), f"causal={causal}: a fully padded row gives gradients that are not finite"
    core = subject.core(causal)
    if core is None:
        return
    q, k, v = (subject.heads_of_tokens(core, x.shape[1], seed=seed) for seed in (1, 2, 3))
    k = k.masked_fill(~keep[:, None, :, None], float("nan"))
    for name in ("attend", "formula"):
        y = getattr(core, name)(q, k, v, keep)
        same(y[0], torch.zeros_like(y[0]), f"causal={causal}: {name} of a fully padded row")
        assert y.isfinite().all(), f"causal={causal}: NaN at padded keys reaches {name}"
