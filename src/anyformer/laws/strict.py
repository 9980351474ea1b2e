"""Law 9: what is unknown or cannot be done is refused, with a message that helps; nothing is ignored.

The card says all that a mechanism can do: neither more than it does, nor less.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyformer.card import find
from anyformer.contract import Attention
from anyformer.laws.evidence import near, paddings, raises, replaced
from anyformer.laws.subject import Subject

REFUSED = (TypeError, ValueError)


def claimed(subject: Subject) -> bool:
    return True


def check(subject: Subject) -> None:
    length = subject.short
    x, context = subject.tokens(2, length), subject.tokens(2, length, seed=2)
    for causal in subject.orders:
        layer = done(partial(subject.layer, causal, length=length), f"causal={causal}")
        raises(partial(layer, x, surely_unknown=1), (TypeError,), "an unknown argument to forward")
        no_more(subject, layer, x, context, causal)
        no_less(subject, layer, x, context, causal)
        if subject.catalogued:
            wrong_inputs(subject, layer, x)
            core = subject.core(causal, length=length)
            if core is not None:
                core_is_strict(subject, core, length)
    if subject.catalogued:
        options_are_known(subject)
        sizes(subject)
        ordered = subject.card.stream == "none" or subject.card.causal != "no"
        assert ordered, "the card claims streaming, which needs a causal form"


def no_more(subject: Subject, layer: Any, x: Tensor, context: Tensor, causal: bool) -> None:
    """What the card claims is not refused."""
    card, keep = subject.card, paddings(x.shape[1])["right"]
    if card.cross:
        done(lambda: layer(x, context), "a context")
    if card.padding:
        done(lambda: layer(x, keep=keep), "a keep mask")
    if card.cross and card.padding:
        done(lambda: layer(x, context, keep=keep), "the keep mask of a context")
    if card.stream == "exact" and causal:
        done(lambda: layer.stream(x, layer.start(batch=2)), "streaming")


def no_less(subject: Subject, layer: Any, x: Tensor, context: Tensor, causal: bool) -> None:
    """What the card does not claim is refused, and what it says of order is so."""
    card = subject.card
    if not card.cross:
        raises(lambda: layer(x, context), REFUSED, "a context, which the card does not claim")
    if not card.padding:
        keep = paddings(x.shape[1])["right"]
        raises(lambda: layer(x, keep=keep), REFUSED, "a keep mask, which the card does not claim")
    if subject.catalogued:
        if card.stream == "none" or not causal:
            raises(lambda: layer.start(batch=2), (ValueError,), f"causal={causal}: start, which is not claimed")
            raises(lambda: layer.stream(x, None), REFUSED, f"causal={causal}: stream, which is not claimed")
        if not card.cross:
            prepared = "a prepared context, which the card does not claim"
            raises(lambda: layer.start(2, context=context), (ValueError,), prepared)
    if not causal:
        sees_the_future(layer, x)
        if subject.catalogued and not card.batch_statistics:
            order_is_as_said(subject, layer, x)


@torch.no_grad()
def sees_the_future(layer: Any, x: Tensor) -> None:
    half = x.shape[1] // 2
    changed = replaced(x, (slice(None), slice(half, None)), -x[:, half:])
    blind = torch.equal(layer(changed)[:, :half], layer(x)[:, :half])
    assert not blind, "it was not asked to be causal, and the future changes nothing: say that it is"


@torch.no_grad()
def order_is_as_said(subject: Subject, layer: Any, x: Tensor) -> None:
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(4))
    turned, expected = layer(x[:, order]), layer(x)[:, order]
    if not subject.card.order:
        near(turned, expected, "the card says that positions do not matter: tokens in another order")
        return
    matters = not torch.allclose(turned, expected, rtol=1e-9, atol=1e-9)
    assert matters, "the card says that positions matter, and tokens in another order give the same outputs"


def options_are_known(subject: Subject) -> None:
    raises(lambda: subject.make(surely_unknown=1), (TypeError,), "build with an unknown option", ["surely_unknown"])
    kind, options = constructor(subject)
    wrong = {**options, "surely_unknown": 1}
    raises(lambda: kind(**wrong), (TypeError,), "the class with an unknown option", ["surely_unknown"])
    swallowed = [p.name for p in inspect.signature(kind).parameters.values() if p.kind == p.VAR_KEYWORD]
    assert not swallowed, f"the class takes **{swallowed[0]}, which swallows what is misspelt"
    for causal in {True, False} - set(subject.orders):
        said = f"causal={causal}, which the card does not claim"
        raises(lambda causal=causal: subject.make(causal=causal), (ValueError,), f"build with {said}", ["causal"])
        again = {**options, "causal": causal}
        raises(lambda again=again: kind(**again), REFUSED, f"the class with {said}", ["causal"])
    raises(lambda: subject.make(causal="yes"), REFUSED, "causal='yes'", ["causal"])
    for name in {"heads", "window", "features", "max_length"} & set(subject.options):
        raises(lambda name=name: subject.make(**{name: 0}), REFUSED, f"{name}=0", [name])


def constructor(subject: Subject) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The mechanism's own class, and options with which it can be built."""
    entry, variant = find(subject.name)
    layer = subject.layer(subject.orders[0])
    made = getattr(layer, "core", layer)
    shape = {"dim": subject.dim} if made is layer else {"heads": made.heads, "head_dim": made.head_dim}
    known = inspect.signature(type(made)).parameters
    options = {**subject.options, **subject.sized(None), **shape, **entry.card.variants.get(variant or "", {})}
    return type(made), {name: value for name, value in options.items() if name in known}


def wrong_inputs(subject: Subject, layer: Any, x: Tensor) -> None:
    raises(lambda: layer(x[0]), (ValueError,), "tokens without a batch", ["shape"])
    raises(lambda: layer(x[..., :-1]), (ValueError,), "tokens of another width", ["shape"])
    raises(lambda: layer(x[:, :0]), (ValueError,), "an empty sequence", ["empty"])
    raises(lambda: layer(x.float()), (ValueError,), "tokens of another dtype", ["dtype"])
    raises(lambda: layer(x.long()), (ValueError,), "whole numbers as tokens")
    raises(lambda: layer(x.tolist()), (TypeError,), "a list as tokens", ["tensor"])
    if subject.card.padding:
        keep = paddings(x.shape[1])["right"]
        raises(lambda: layer(x, keep=keep[:, 1:]), (ValueError,), "a mask of another length", ["keep"])
        raises(lambda: layer(x, keep=keep[:1]), (ValueError,), "a mask of another batch", ["keep"])
        raises(lambda: layer(x, keep=keep.float()), (ValueError,), "a mask that is not bool", ["bool"])
    if subject.card.cross and not layer.causal:
        raises(lambda: layer(x, x[:1]), (ValueError,), "a context of another batch", ["batch"])
        raises(lambda: layer(x, x[..., :-1]), (ValueError,), "a context of another width", ["context"])


def core_is_strict(subject: Subject, core: Attention, length: int) -> None:
    """The core, which a converted model calls without its layer."""
    q, k, v = (subject.heads_of_tokens(core, length, seed=seed) for seed in (1, 2, 3))
    for name in ("attend", "formula"):
        form = getattr(core, name)
        raises(lambda form=form: form(q[..., :-1], k, v), (ValueError,), f"{name}: q of another head_dim")
        raises(lambda form=form: form(q[:, :1], k, v), (ValueError,), f"{name}: too few query heads")
        raises(lambda form=form: form(q, k, v[:, :, 1:]), (ValueError,), f"{name}: fewer values than keys")
        raises(lambda form=form: form(q, k[:1], v[:1]), (ValueError,), f"{name}: keys of another batch")
        if core.causal:
            raises(lambda form=form: form(q, k[:, :, 1:], v[:, :, 1:]), (ValueError,), f"{name}: queries before keys")
        elif not subject.card.cross:
            unclaimed = f"{name}: more keys than queries, which the card does not claim"
            raises(lambda form=form: form(q[:, :, 1:], k, v), (ValueError,), unclaimed)
        if not subject.card.padding:
            keep = paddings(length)["right"]
            unclaimed = f"{name}: a keep mask, which the card does not claim"
            raises(lambda form=form, keep=keep: form(q, k, v, keep), (ValueError,), unclaimed)


def sizes(subject: Subject) -> None:
    """More tokens than the maximum, and tokens that do not fill the grid."""
    layer = subject.layer(subject.orders[0])
    if subject.most is not None:
        x = subject.tokens(2, subject.most + 1)
        raises(lambda: layer(x), (ValueError,), "more tokens than max_length", ["max_length"])
    if subject.grid:
        x = subject.tokens(2, subject.short - 1)
        raises(lambda: layer(x), (ValueError,), "fewer tokens than the grid has", ["grid"])


def done(call: Callable[[], Any], what: str) -> Any:
    try:
        return call()
    except REFUSED as refusal:
        raise AssertionError(f"{what}, which the card claims, is refused: {refusal}") from refusal
