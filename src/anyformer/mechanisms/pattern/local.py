"""Local attention: softmax over the keys at a distance below a window.

Paper    Beltagy, Peters and Cohan 2020, Longformer, arXiv:2004.05150, section 3.1 (sliding window); the window here
         counts one side and the token itself, so theirs of w is ours of w/2 + 1
         y_i = sum_j exp(q_i.k_j / sqrt(D)) v_j / sum_j exp(q_i.k_j / sqrt(D)),
         over j with |i - j| < window, and 0 <= i - j < window when causal
Shapes   B batch, H heads, N queries, M keys, D key dim, E value dim, R rows of a block
Differs  blocks of queries meet the stretch of keys that they can see in torch's fused attention, where the authors
         multiply overlapping chunks of a fixed size; any length will do, and there are no global tokens
"""

from typing import Any

import torch
from torch import Tensor, finfo
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from anyformer.card import Card
from anyformer.contract import Attention, require_positive
from anyformer.parts.masks import seen


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


def blocks(queries: int, keys: int, window: int, causal: bool) -> list[tuple[slice, slice]]:
    """Blocks of queries, each with the keys that any of them sees; the queries are the last of the positions."""
    rows, before = max(64, min(window, 256)), keys - queries
    return [
        (
            slice(first, last := min(first + rows, queries)),
            slice(max(0, before + first - window + 1), min(keys, before + last + (0 if causal else window - 1))),
        )
        for first in range(0, queries, rows)
    ]


class Band(Function):
    """Fused attention, block by block, in one step of the graph: slices would each get a gradient of full length."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, window: int, causal: bool) -> Tensor:
        ctx.save_for_backward(q, k, v, keep)
        ctx.window, ctx.causal = window, causal
        y = q.new_empty(*q.shape[:3], v.shape[3])
        for rows, reach, sees in masked_blocks(q, k, keep, window, causal):
            y[:, :, rows] = scaled_dot_product_attention(q[:, :, rows], k[:, :, reach], v[:, :, reach], sees)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        gradients = [torch.zeros_like(t) if need else None for t, need in zip((q, k, v), needs, strict=True)]
        for rows, reach, sees in masked_blocks(q, k, keep, ctx.window, ctx.causal):
            with torch.enable_grad():
                inputs = [
                    t[:, :, part].detach().requires_grad_(need)
                    for t, part, need in zip((q, k, v), (rows, reach, reach), needs, strict=True)
                ]
                y = scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], sees)
            wanted = [t for t in inputs if t.requires_grad]
            found = iter(torch.autograd.grad(y, wanted, dy[:, :, rows]))
            for total, part in zip(gradients, (rows, reach, reach), strict=True):
                if total is not None:
                    total[:, :, part] += next(found)
        return *gradients, None, None, None


def masked_blocks(q: Tensor, k: Tensor, keep: Tensor | None, window: int, causal: bool) -> Any:
    """The blocks with who sees whom; most blocks share one mask."""
    masks: dict[tuple[int, ...], Tensor] = {}
    before = k.shape[2] - q.shape[2]
    for rows, reach in blocks(q.shape[2], k.shape[2], window, causal):
        queries, keys, last = rows.stop - rows.start, reach.stop - reach.start, before + rows.stop - reach.start
        shape = (queries, keys, last)
        if shape not in masks:
            masks[shape] = seen(queries, keys, last=last, causal=causal, window=window, device=q.device)
        sees = masks[shape]
        yield rows, reach, sees if keep is None else sees & keep[:, None, None, reach]
