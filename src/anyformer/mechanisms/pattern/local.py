"""Local attention: softmax over the keys at a distance below a window.

Paper    Beltagy, Peters and Cohan 2020, Longformer, arXiv:2004.05150, section 3.1 (sliding window); the window here
         counts one side and the token itself, so theirs of w is ours of w/2 + 1
         y_i = sum_j exp(q_i.k_j / sqrt(D)) v_j / sum_j exp(q_i.k_j / sqrt(D)),
         over j with |i - j| < window, and 0 <= i - j < window when causal
Shapes   B batch, H heads, N queries, M keys, D key dim, E value dim, R rows of a block,
         S keys in its reach, G items x heads
Differs  each block of queries meets the stretch of keys that any of them can see, where the authors multiply
         overlapping chunks as long as the window; any length will do, and there are no global tokens
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, finfo
from torch.autograd.function import Function, once_differentiable

from anyformer.card import Card
from anyformer.contract import Attention, require_positive
from anyformer.parts.masks import pairs, seen
from anyformer.parts.precision import precise, precision, without_autocast
from anyformer.parts.room import Room

ROWS = 64  # of a block of queries: more would meet keys that few of them see, fewer make products small
HEADS_AT_ONCE = 16  # items x heads in one product: more leave the cache


class Local(Attention):
    card = Card(
        title="sliding-window attention",
        paper="Beltagy, Peters and Cohan 2020, Longformer, arXiv:2004.05150, section 3.1",
        year=2020,
        causal="option",
        cross=False,
        padding=True,
        stream="exact",
        state="constant",
        time=1,
        memory=1,
        price="Exact within its window and blind beyond it: what is further away is reached through several layers "
        "only.",
        block=64,
        order=True,
        tiny={"dim": 16, "heads": 2, "window": 5},
        limits=({"window": 100_000},),
    )

    def __init__(self, *, heads: int, head_dim: int, causal: bool = False, window: int = 128) -> None:
        super().__init__(heads=heads, head_dim=head_dim, causal=causal)
        require_positive(window=window)
        self.window, self.horizon = window, window - 1

    def formula(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        sees = seen(q.shape[2], k.shape[2], causal=self.causal, window=self.window, device=q.device, keep_BM=keep_BM)
        score_BHNM = q @ k.transpose(-1, -2) / self.head_dim**0.5
        weight_BHNM = score_BHNM.masked_fill(~sees, finfo(q.dtype).min).softmax(-1) * sees
        return weight_BHNM @ v

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        return Band.apply(q, k, v, keep_BM, self.window, self.causal)

    def least(self, queries: int, keys: int) -> float:
        met = pairs(queries, keys, causal=self.causal, window=self.window)
        return 4.0 * self.heads * self.head_dim * met  # q.k and weight.v


class Step(NamedTuple):
    """Some items' queries in a block of rows, and the stretch of keys that any of them can see."""

    items: slice
    rows: slice
    reach: slice
    bias: Tensor  # (1 or G, R, keys): zero where a query sees a key, else minus infinity
    blind: Tensor | None  # (G, R, 1): queries that see no key


def steps(q: Tensor, k: Tensor, keep: Tensor | None, window: int, causal: bool) -> Iterator[Step]:
    """The queries are the last of the positions. Most blocks share one bias, and reach over a round number of keys."""
    (B, H, N, _), M = q.shape, k.shape[2]
    together = max(1, HEADS_AT_ONCE // H)
    shared: dict[tuple[int, int, int], Tensor] = {}
    for first in range(0, N, ROWS):
        rows = slice(first, min(first + ROWS, N))
        start, stop = M - N + rows.start, M - N + rows.stop
        reach = slice(max(0, start - window + 1) // 16 * 16, stop if causal else min(M, stop + window - 1))
        queries, keys, last = stop - start, reach.stop - reach.start, stop - reach.start
        if (queries, keys, last) not in shared:
            sees = seen(queries, keys, last=last, causal=causal, window=window, device=q.device)
            shared[queries, keys, last] = q.new_zeros(queries, keys, dtype=precision(q)).masked_fill_(~sees, -torch.inf)
        bias = shared[queries, keys, last]
        for item in range(0, B, together):
            items = slice(item, min(item + together, B))
            if keep is None:
                yield Step(items, rows, reach, bias.unsqueeze(0), None)
                continue
            biases = bias.masked_fill(~keep[items, None, None, reach], -torch.inf).expand(-1, H, -1, -1).flatten(0, 1)
            yield Step(items, rows, reach, biases, (biases == -torch.inf).all(-1, keepdim=True))


def weights(q_GRD: Tensor, k_GSD: Tensor, step: Step, room: Room) -> Tensor:
    """Softmax over the keys in reach; zero for a query that sees none."""
    p_GRS = room("p", *q_GRD.shape[:2], k_GSD.shape[1])
    torch.baddbmm(step.bias, q_GRD, k_GSD.mT, alpha=q_GRD.shape[-1] ** -0.5, out=p_GRS)
    torch.softmax(p_GRS, -1, out=p_GRS)
    return p_GRS if step.blind is None else p_GRS.masked_fill_(step.blind, 0)


class Band(Function):
    """Block by block, in one step of the graph: slices would each get a gradient of full length."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, window: int, causal: bool) -> Tensor:
        y = q.new_empty(*q.shape[:3], v.shape[3], dtype=precision(q))
        room = Room(y)
        with without_autocast(q):
            for step in steps(q, k, keep, window, causal):
                q_, k_, v_ = parts(step, q, k, v)
                part = y[step.items, :, step.rows]
                found = torch.bmm(weights(q_, k_, step, room), v_, out=room("y", *q_.shape[:2], v_.shape[2]))
                part.copy_(found.view_as(part))
        ctx.save_for_backward(q, k, v, keep, y)
        ctx.window, ctx.causal = window, causal
        return y.to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, y = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        along = (dy * y).sum(-1, keepdim=True)  # needs as much memory as y, for a moment
        dq = torch.empty(q.shape, dtype=precision(q), device=q.device) if needs[0] else None
        dk, dv = (
            torch.zeros(t.shape, dtype=precision(t), device=t.device) if need else None
            for t, need in zip((k, v), needs[1:], strict=True)
        )
        room = Room(y)
        with without_autocast(q):
            for step in steps(q, k, keep, ctx.window, ctx.causal):
                q_, k_, v_ = parts(step, q, k, v)
                dy_ = dy[step.items, :, step.rows].flatten(0, 1).to(q_.dtype)
                p = weights(q_, k_, step, room)
                if dv is not None:
                    dv[step.items, :, step.reach].flatten(0, 1).add_(torch.bmm(p.mT, dy_, out=room("keys", *v_.shape)))
                if dq is None and dk is None:
                    continue
                ds = torch.bmm(dy_, v_.mT, out=room("ds", *p.shape))  # of q.k / sqrt(D)
                ds.sub_(along[step.items, :, step.rows].flatten(0, 1)).mul_(p)
                scale = q.shape[-1] ** -0.5
                if dq is not None:
                    part = torch.bmm(ds, k_, out=room("y", *q_.shape))
                    torch.mul(part, scale, out=dq[step.items, :, step.rows].flatten(0, 1))
                if dk is not None:
                    part = torch.bmm(ds.mT, q_, out=room("keys", *k_.shape))
                    dk[step.items, :, step.reach].flatten(0, 1).add_(part, alpha=scale)
        gradients = (None if g is None else g.to(t.dtype) for g, t in zip((dq, dk, dv), (q, k, v), strict=True))
        return *gradients, None, None, None


def parts(step: Step, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """(G, rows, D) of the queries, (G, reach, D) of keys and values."""
    of = ((q, step.rows), (k, step.reach), (v, step.reach))
    return precise(*(t[step.items, :, rows].flatten(0, 1) for t, rows in of))
