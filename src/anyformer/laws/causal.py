"""Law 2: the future changes nothing before it, bit by bit: a leak through a stabiliser is about 1e-15."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from anyformer.contract import Attention
from anyformer.laws.evidence import gradients, near, paddings, replaced, same
from anyformer.laws.subject import Subject, little_cache

DRAWS = 3


def claimed(subject: Subject) -> bool:
    return subject.card.causal != "no"


def check(subject: Subject) -> None:
    length = subject.length
    for dtype in (torch.float32, torch.float64):
        for training in subject.trainings:
            layer = subject.layer(True, dtype, length=length, training=training)
            for draw in range(DRAWS):
                x = subject.tokens(2, length, dtype, seed=draw)
                for cut in (1, length // 2 - draw, length - 1):
                    unmoved(layer, x, cut, f"{dtype}, training={training}, cut at {cut} of {length}")
                with little_cache():
                    unmoved(layer, x, length // 2 - draw, f"{dtype}, training={training}, little cache")
                padded(subject, layer, x, length // 2 - draw, f"{dtype}, training={training}")
                if subject.card.cross and not subject.grid:
                    few = length // 3
                    last = partial(layer, subject.tokens(2, few, dtype, seed=draw + 10))
                    unmoved(last, x, length - few + few // 2, f"{dtype}, fewer queries than keys", few // 2)
            if not subject.grid:
                near(layer(x[:, :cut]), layer(x)[:, :cut], f"{dtype}: the beginning alone", tolerance(dtype))
        core = subject.core(True, dtype, length=length)
        if core is not None and not subject.grid:
            last_queries(subject, core, length, dtype)


def padded(subject: Subject, layer: torch.nn.Module, x: Tensor, cut: int, what: str) -> None:
    """The future's own padding is the future too."""
    if not subject.card.padding:
        return
    keep = paddings(x.shape[1])["left"]
    unmoved(partial(layer, keep=keep), x, cut, f"{what}, padded left")
    later = keep.clone()
    later[:, cut::2] = False
    same(layer(x, keep=later)[:, :cut], layer(x, keep=keep)[:, :cut], f"{what}: padding in the future")


def last_queries(subject: Subject, core: Attention, length: int, dtype: torch.dtype) -> None:
    """With fewer queries than keys, the queries are the last positions."""
    q, k, v = (subject.heads_of_tokens(core, length, dtype, seed=seed) for seed in (1, 2, 3))
    whole = core.attend(q, k, v)
    for few in (1, length // 2, length - 1):
        near(core.attend(q[:, :, -few:], k, v), whole[:, :, -few:], f"{few} queries as the last", tolerance(dtype))
        for cut in {1, few // 2}:

            def attended(kv_BM2HD: Tensor, few: int = few) -> Tensor:
                k, v = kv_BM2HD.transpose(1, 3).unbind(2)
                return core.attend(q[:, :, -few:], k, v).transpose(1, 2)

            kv = torch.stack([k, v], 2).transpose(1, 3)
            unmoved(attended, kv, length - few + cut, f"{dtype}, the core with {few} queries", cut)


def unmoved(layer: Callable[[Tensor], Tensor], x: Tensor, cut: int, what: str, first_rows: int | None = None) -> None:
    """Changing positions from `cut` on leaves the rows before them (`first_rows` of them) as they were."""
    rows = cut if first_rows is None else first_rows
    if not rows or cut >= x.shape[1]:
        return
    x = x.clone().requires_grad_()
    before = layer(x)[:, :rows]
    with torch.no_grad():
        later = slice(None), slice(cut, None)
        for how, future in (("slightly", x[later] + 1e-3), ("a thousandfold", x[later] * 1e3)):
            same(layer(replaced(x, later, future))[:, :rows], before, f"{what}: the future changed {how}")
    (gradient,) = gradients(before, None, [x])
    same(gradient[:, cut:], torch.zeros_like(gradient[:, cut:]), f"{what}: the gradient of the future")


def tolerance(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 1e-9
