"""Law 5: the items of a batch do not see each other, and their order does not matter."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyformer.laws.evidence import gradients, near, paddings, replaced, same
from anyformer.laws.subject import Subject, little_cache

MANY = 150  # items: more than a fast form takes at once


def claimed(subject: Subject) -> bool:
    return True


def check(subject: Subject) -> None:
    length = subject.short
    x = subject.tokens(3, length)
    for causal in subject.orders:
        for training in subject.trainings:
            layer = subject.layer(causal, length=length, training=training)
            what = f"causal={causal}, training={training}"
            strangers(layer, x, {}, f"{what}, no padding")
            with little_cache():
                strangers(layer, x, {}, f"{what}, little cache")
            for where, mask in paddings(length).items() if subject.card.padding else ():
                strangers(layer, x, {"keep": torch.cat([mask, mask[:1]])}, f"{what}, padded {where}")
            if subject.card.cross and not causal:
                context = subject.tokens(3, subject.contexts(length)[0], seed=2)
                strangers(layer, x, {"context": context}, f"{what}, over contexts")
        one_of_many(subject.layer(causal, length=length), subject.tokens(MANY, length, seed=3), f"causal={causal}")
        with little_cache():
            one_of_many(subject.layer(causal, length=7), subject.tokens(5, 7, seed=3), f"causal={causal}, little cache")
    if subject.card.batch_statistics:
        training_mixes(subject, x)


def strangers(layer: torch.nn.Module, x: Tensor, given: dict[str, Tensor], what: str) -> None:
    y = call(layer, x, given)
    others = {
        name: t if t.dtype == torch.bool else replaced(t, slice(1, None), -5 * t[1:]) for name, t in given.items()
    }
    changed = replaced(x, slice(1, None), -5 * x[1:])
    same(call(layer, changed, others)[0], y[0], f"{what}: other items changed")
    order = [2, 0, 1]
    near(call(layer, x[order], taken(given, order)), y[order], f"{what}: the batch in another order")
    for item in range(3):
        near(call(layer, x[[item]], taken(given, [item])), y[[item]], f"{what}: an item alone")
    asked = x.clone().requires_grad_()
    (gradient,) = gradients(call(layer, asked, given)[0], None, [asked])
    same(gradient[1:], torch.zeros_like(gradient[1:]), f"{what}: the gradient of other items")


@torch.no_grad()
def one_of_many(layer: torch.nn.Module, x: Tensor, what: str) -> None:
    """Fast forms take some items at a time."""
    y, many = layer(x), len(x)
    for item in (0, many // 2, many - 1):
        near(layer(x[[item]]), y[[item]], f"{what}: one of {many} items alone")


def taken(given: dict[str, Tensor], items: list[int]) -> dict[str, Tensor]:
    return {name: t[items] for name, t in given.items()}


def call(layer: Any, x: Tensor, given: dict[str, Tensor]) -> Tensor:
    """A foreign module need not know the arguments that are not claimed."""
    crossed = partial(layer, x, given["context"]) if "context" in given else partial(layer, x)
    return crossed(keep=given["keep"]) if "keep" in given else crossed()


def training_mixes(subject: Subject, x: Tensor) -> None:
    """The card excuses training from this law; the excuse must be needed."""
    layer = subject.layer(subject.orders[0], length=x.shape[1], training=True)
    changed = layer(replaced(x, slice(1, None), -5 * x[1:]))[0]
    assert not torch.equal(changed, layer(x)[0]), "the card says that training mixes a batch, and it does not"
