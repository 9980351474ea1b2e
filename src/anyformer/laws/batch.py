"""Law 5: the items of a batch do not see each other, and their order does not matter."""

import torch

from anyformer.laws.evidence import gradients, near, paddings, same
from anyformer.laws.subject import Subject


def claimed(subject: Subject) -> bool:
    return True


def check(subject: Subject) -> None:
    length = subject.card.block + 5
    for causal in subject.orders:
        for training in subject.trainings:
            layer, x = subject.layer(causal, training=training), subject.tokens(3, length)
            masks: list[torch.Tensor | None] = [None]
            if subject.card.padding:
                masks += [torch.cat([mask, mask[:1]]) for mask in paddings(length).values()]
            for keep in masks:
                what = f"causal={causal}, training={training}, {'no padding' if keep is None else 'padded'}"
                y = layer(x, keep=keep)
                changed = torch.cat([x[:1], -5 * x[1:]])
                same(layer(changed, keep=keep)[0], y[0], f"{what}: other items changed")
                order = [2, 0, 1]
                turned = layer(x[order], keep=None if keep is None else keep[order])
                near(turned, y[order], f"{what}: the batch in another order")
                for item in range(3):
                    alone = layer(x[item : item + 1], keep=None if keep is None else keep[item : item + 1])
                    near(alone, y[item : item + 1], f"{what}: an item alone")
                asked = x.clone().requires_grad_()
                (gradient,) = gradients(layer(asked, keep=keep)[0], None, [asked])
                same(gradient[1:], torch.zeros_like(gradient[1:]), f"{what}: the gradient of other items")
