"""Law 3: padding is as if it were not there, whatever stands in its place, NaN included."""

from collections.abc import Callable

import torch
from torch import Tensor

from anyformer.laws.evidence import gradients, near, paddings, parameters, same
from anyformer.laws.subject import Subject

GARBAGE = (0.0, 1e4, float("nan"))


def claimed(subject: Subject) -> bool:
    return subject.card.padding


def check(subject: Subject) -> None:
    length = subject.short
    x = subject.tokens(2, length)
    for causal in subject.orders:
        for training in subject.trainings:
            layer = subject.layer(causal, length=length, training=training)
            whose = f"causal={causal}, training={training}"
            for where, keep in paddings(length).items():
                garbage_is_nothing(subject, layer, x, keep, f"{whose}, padded {where}")
                garbage_is_nothing(subject, layer, x[:1], keep[:1], f"{whose}, padded {where}, batch of one")
            if not subject.grid:
                shorter_is_equal(layer, x, whose)
            if not subject.card.order and not subject.grid:
                removed_is_equal(layer, x, whose)
            if subject.card.cross and not causal:
                for keys in subject.contexts(length):
                    padded_context(subject, layer, x, subject.tokens(2, keys, seed=2), f"{whose}, {keys} keys")
        nothing_seen(subject, causal)


def garbage_is_nothing(subject: Subject, layer: torch.nn.Module, x: Tensor, keep: Tensor, what: str) -> None:
    """The same outputs and gradients; a foreign module may answer what it likes at padded positions themselves."""
    read = torch.ones_like(keep) if subject.catalogued else keep
    indifferent(lambda tokens: layer(tokens, keep=keep)[read], x, keep, parameters(layer), what)


def padded_context(subject: Subject, layer: torch.nn.Module, x: Tensor, context: Tensor, what: str) -> None:
    for where, keep in paddings(context.shape[1]).items():
        if not subject.catalogued and where == "a whole row":
            continue

        def crossed(tokens: Tensor, keep: Tensor = keep) -> Tensor:
            return layer(x, tokens, keep=keep)

        indifferent(crossed, context, keep, parameters(layer), f"{what}, context padded {where}")
        if keep[0].any() and not subject.grid and (where == "right" or not subject.card.order):
            alone = layer(x[:1], context[:1, keep[0]])
            near(layer(x[:1], context[:1], keep=keep[:1]), alone, f"{what}, context padded {where}: removed instead")


def indifferent(form: Callable[[Tensor], Tensor], x: Tensor, keep: Tensor, weights: list[Tensor], what: str) -> None:
    """Zeros, large numbers and NaN at padded positions come to the same."""
    first: list[Tensor] = []
    for garbage in GARBAGE:
        tokens = x.masked_fill(~keep[:, :, None], garbage).requires_grad_()
        y = form(tokens)
        told_apart = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        found = [y, *gradients(y, told_apart, [tokens, *weights])]
        assert all(t.isfinite().all() for t in found), f"{what}: not finite when {garbage} stands there"
        same(found[1][~keep], torch.zeros_like(found[1][~keep]), f"{what}: the gradient at padded positions")
        first = first or found
        for now, expected in zip(found, first, strict=True):
            near(now, expected, f"{what}: what stands at padded positions matters", 1e-12)


@torch.no_grad()
def shorter_is_equal(layer: torch.nn.Module, x: Tensor, what: str) -> None:
    """Padding on the right equals the shorter input, alone or in a batch."""
    short = x.shape[1] - x.shape[1] // 3
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[0, short:] = False
    alone = layer(x[:1, :short])
    near(layer(x, keep=keep)[:1, :short], alone, f"{what}: padding on the right, compared with the shorter input")
    near(layer(x[:1], keep=keep[:1])[:, :short], alone, f"{what}: the same in a batch of one")


@torch.no_grad()
def removed_is_equal(layer: torch.nn.Module, x: Tensor, what: str) -> None:
    """Where positions do not matter, padding anywhere equals removing it."""
    for where, keep in paddings(x.shape[1]).items():
        if keep[0].any():
            y, alone = layer(x, keep=keep)[:1, keep[0]], layer(x[:1, keep[0]])
            near(y, alone, f"{what}: padded {where}, compared with removing it")


def nothing_seen(subject: Subject, causal: bool) -> None:
    """A query that sees no key gives zero before the out projection, and NaN at padded keys stays there."""
    length = subject.short
    core = subject.core(causal, length=length)
    if core is None:
        return
    masks = paddings(length)
    blind = {"a whole row": slice(None)}
    if causal:
        blind["left"] = slice(int(masks["left"][0].int().argmax()))  # causal queries before the first real key
    q, k, v = (subject.heads_of_tokens(core, length, seed=seed).requires_grad_() for seed in (1, 2, 3))
    for where, rows in blind.items():
        padded = ~masks[where][:, None, :, None]
        for name in ("attend", "formula"):
            what = f"causal={causal}: {name}, padded {where}"
            y = getattr(core, name)(q, k.masked_fill(padded, torch.nan), v.masked_fill(padded, torch.nan), masks[where])
            assert y.isfinite().all(), f"{what}: NaN at padded keys gets through"
            same(y[0, :, rows], torch.zeros_like(y[0, :, rows]), f"{what}: a query that sees no key")
            for gradient in gradients(y, None, [q, k, v, *parameters(core)]):
                assert gradient.isfinite().all(), f"{what}: gradients that are not finite"
