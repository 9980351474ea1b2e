"""Law 2: the future changes nothing before it, bit by bit: a leak through a stabiliser is about 1e-15."""

from collections.abc import Callable

import torch
from torch import Tensor

from anyformer.laws.evidence import gradients, near, same
from anyformer.laws.subject import Subject

DRAWS = 3


def claimed(subject: Subject) -> bool:
    return subject.card.causal != "no"


def check(subject: Subject) -> None:
    length = subject.length
    for dtype in (torch.float32, torch.float64):
        for draw in range(DRAWS):
            for training in subject.trainings:
                layer = subject.layer(True, dtype, training=training)
                x = subject.tokens(2, length, dtype, seed=draw)
                for cut in (1, length // 2 - draw, length - 1):
                    unmoved(layer, x, cut, f"{dtype}, cut at {cut} of {length}")
            if subject.card.cross:
                queries = subject.tokens(2, length // 3, dtype, seed=draw + 10)
                later = length - length // 3
                cut = length // 6
                unmoved(
                    lambda context, layer=layer, queries=queries: layer(queries, context),  # type: ignore[misc]
                    x,
                    later + cut,
                    f"{dtype}, fewer queries than keys",
                    first_rows=cut,
                )
    core = subject.core(True)
    if core is not None:
        q, k, v = (subject.heads_of_tokens(core, length, seed=seed) for seed in (1, 2, 3))
        whole = core.attend(q, k, v)
        for few in (1, length // 2):
            last = core.attend(q[:, :, -few:], k, v)
            near(last, whole[:, :, -few:], f"{few} queries as the last of {length} positions")


def unmoved(layer: Callable[[Tensor], Tensor], x: Tensor, cut: int, what: str, first_rows: int | None = None) -> None:
    """Changing positions from `cut` on leaves the rows before them (`first_rows` of them) as they were."""
    rows = cut if first_rows is None else first_rows
    before = layer(x)[:, :rows]
    for how, future in (("slightly", x[:, cut:] + 1e-3), ("a thousandfold", x[:, cut:] * 1e3)):
        changed = torch.cat([x[:, :cut], future], 1)
        same(layer(changed)[:, :rows], before, f"{what}: the future changed {how}")
    x = x.clone().requires_grad_()
    (gradient,) = gradients(layer(x)[:, :rows], None, [x])
    same(gradient[:, cut:], torch.zeros_like(gradient[:, cut:]), f"{what}: the gradient of the future")
