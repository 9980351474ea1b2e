"""Linear attention: softmax's kernel becomes phi(q).phi(k) with phi(x) = elu(x) + 1, so sums factor out.

Paper    Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, eq. 4-12 and 16-20
         y_i = phi(q_i).sum_j phi(k_j) v_j^T / phi(q_i).sum_j phi(k_j)      (j <= i when causal)
Symbols  w_j = (v_j, 1): a one beside each value, so that one sum S = sum_j phi(k_j) w_j^T (the paper's s and z)
         gives numerator and denominator together, (num_i, den_i) = phi(q_i).S; padded keys have w_j = 0
Shapes   B batch, H heads, N queries, M keys, D key dim, E value dim, W = E + 1, R rows of a block
Differs  causal sums run block by block: within a block as a masked product, before it through S; the authors
         step token by token in a CUDA kernel. No epsilon under the fraction: a query without keys gives zero
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from anyformer.card import Card
from anyformer.contract import Attention, require_positive
from anyformer.parts.masks import seen

HEADS_AT_ONCE = 16  # items x heads in one product: more leave the cache
BLOCK = 128  # rows of a causal block
LONG_BLOCK = 512  # rows of a block without order


def phi(x: Tensor) -> Tensor:
    return torch.nn.functional.elu(x) + 1


class Sums(NamedTuple):
    """The recurrent state: everything that linear attention remembers of the past."""

    S_BHDW: Tensor
    position: int


class Linear(Attention):
    card = Card(
        title="linear attention",
        paper="Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236",
        year=2020,
        causal="option",
        cross=True,
        padding=True,
        stream="exact",
        state="constant",
        time=1,
        memory=1,
        block=128,
    )

    def formula(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        sees = seen(q.shape[2], k.shape[2], causal=self.causal, device=q.device, keep_BM=keep_BM)
        weight_BHNM = phi(q) @ phi(k).transpose(-1, -2) * sees  # eq. 4 with sim = phi.phi
        return divided(weight_BHNM @ v, weight_BHNM.sum(-1, keepdim=True))

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        one_BM1 = ones(v, keep_BM)
        before = k.shape[2] - q.shape[2] if self.causal else 0  # keys before the first query:
        q = torch.nn.functional.pad(q, (0, 0, before, 0)) if before else q  # give them queries that nobody reads
        sums = CausalSums if self.causal else FullSums
        y_BHNE = sums.apply(*precise(q, k, v, one_BM1), torch.is_grad_enabled())
        return y_BHNE[:, :, before:].to(v.dtype)

    def hold(self, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Sums:
        """The sums over a context, which is all that later queries need of it."""
        nobody = k_BHMD.new_zeros(k_BHMD.shape[0], self.heads, 1, self.head_dim)
        _, k, v = self.checked(nobody, k_BHMD, v_BHME, keep_BM)
        with full_precision(k):
            k, w_BHMW = precise(k, beside(v, ones(v, keep_BM)))
            return Sums(phi(k).transpose(-1, -2) @ w_BHMW, k.shape[2])

    def read(self, q_BHND: Tensor, held: Sums) -> Tensor:
        with full_precision(q_BHND):
            num_BHNW = phi(*precise(q_BHND)) @ held.S_BHDW
            return divided(num_BHNW[..., :-1], num_BHNW[..., -1:]).to(q_BHND.dtype)

    def begin(self, batch: int, like: Tensor) -> Sums:
        self.require_streaming()
        require_positive(batch=batch)
        (S_BHDW,) = precise(like.new_zeros(batch, self.heads, self.head_dim, self.head_dim + 1))
        return Sums(S_BHDW, 0)

    def extend(
        self, q_BHND: Tensor, k_BHND: Tensor, v_BHNE: Tensor, state: Any, keep_BN: Tensor | None = None
    ) -> tuple[Tensor, Sums]:
        """Eq. 18-20, a block of tokens at a time."""
        self.check_chunk(q_BHND, k_BHND, v_BHNE, state, Sums, keep_BN)
        q, k, v = self.checked(q_BHND, k_BHND, v_BHNE, keep_BN)
        S_BHDW, outputs = state.S_BHDW, []
        if state.position == 0 and S_BHDW.shape[3] != v.shape[3] + 1:  # values as wide as the first ones seen
            S_BHDW = S_BHDW.new_zeros(*S_BHDW.shape[:3], v.shape[3] + 1)
        with full_precision(q):
            fq, fk, w = precise(q, k, beside(v, ones(v, keep_BN)))
            fq, fk = phi(fq), phi(fk)
            for fq_BHRD, fk_BHRD, w_BHRW in zip(*(t.split(BLOCK, 2) for t in (fq, fk, w)), strict=True):
                num_BHRW = (fq_BHRD @ fk_BHRD.transpose(-1, -2)).tril() @ w_BHRW + fq_BHRD @ S_BHDW
                outputs.append(divided(num_BHRW[..., :-1], num_BHRW[..., -1:]))
                S_BHDW = S_BHDW + fk_BHRD.transpose(-1, -2) @ w_BHRW
        return torch.cat(outputs, 2).to(v.dtype), Sums(S_BHDW, state.position + q.shape[2])


def ones(v_BHME: Tensor, keep_BM: Tensor | None) -> Tensor:
    """The ones beside the values: zero where a key is padding."""
    if keep_BM is None:
        return v_BHME.new_ones(1, 1, 1, 1).expand(v_BHME.shape[0], 1, v_BHME.shape[2], 1)
    return keep_BM[:, None, :, None].to(v_BHME.dtype)


def beside(v_BHME: Tensor, one_B1M1: Tensor) -> Tensor:
    return torch.cat([v_BHME, one_B1M1.expand(-1, v_BHME.shape[1], -1, -1)], -1)


def divided(num_BHNE: Tensor, den_BHN1: Tensor) -> Tensor:
    """Zero where no key was seen."""
    return num_BHNE / den_BHN1.masked_fill(den_BHN1 == 0, 1)


def precise(*tensors: Tensor) -> list[Tensor]:
    """Sums over thousands of tokens need at least float32."""
    return [t if t.dtype == torch.float64 else t.float() for t in tensors]


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


# The fast form. All blocks of one pass share their buffers, which stay in cache, and every product
# reads and writes them contiguously; the inputs are read once, in whatever layout they have.


class Buffers:
    """The features and the values-with-ones of a block of rows, for a few items' heads."""

    def __init__(self, like: Tensor, items: int, heads: int, rows: int, dim: int, width: int) -> None:
        self.shape = (items, heads)
        self.fq, self.fk, self.spare = (like.new_empty(items * heads, rows, dim) for _ in range(3))
        self.w, self.num, self.dw = (like.new_empty(items * heads, rows, width) for _ in range(3))

    def phi(self, x_BHRD: Tensor, out_GRD: Tensor) -> Tensor:
        """phi(x) = exp(min(x, 0)) + max(x, 0)."""
        out, spare = (t[:, : x_BHRD.shape[2]] for t in (out_GRD, self.spare))
        torch.clamp(x_BHRD, max=0, out=out.unflatten(0, self.shape)).exp_()
        torch.clamp(x_BHRD, min=0, out=spare.unflatten(0, self.shape))
        return out.add_(spare)

    def beside(self, v_BHRE: Tensor, one_B1R1: Tensor) -> Tensor:
        """w = (v, 1)"""
        w = self.w[:, : v_BHRE.shape[2]]
        w.unflatten(0, self.shape)[..., :-1].copy_(v_BHRE)
        w.unflatten(0, self.shape)[..., -1:].copy_(one_B1R1)
        return w

    def divide(self, num_GRW: Tensor, y_BHRE: Tensor, inverse_BHR1: Tensor) -> None:
        """y = num / den and 1 / den, both zero where no key was seen."""
        num_BHRW = num_GRW.unflatten(0, self.shape)
        torch.reciprocal(num_BHRW[..., -1:], out=inverse_BHR1).nan_to_num_(posinf=0)
        torch.mul(num_BHRW[..., :-1], inverse_BHR1, out=y_BHRE)

    def gradient_of_num(self, dy_BHRE: Tensor, y_BHRE: Tensor, inverse_BHR1: Tensor) -> Tensor:
        """y = num / den  =>  dnum = dy / den,  dden = -dy.y / den, side by side"""
        dw = self.dw[:, : dy_BHRE.shape[2]]
        dnum, dden = dw.unflatten(0, self.shape)[..., :-1], dw.unflatten(0, self.shape)[..., -1:]
        torch.mul(dy_BHRE, inverse_BHR1, out=dnum)
        dden.copy_((dnum * y_BHRE).sum(-1, keepdim=True).neg_())
        return dw

    def through_phi(self, df_GRD: Tensor, f_GRD: Tensor, out_BHRD: Tensor) -> None:
        """phi'(x) = min(phi(x), 1)"""
        torch.mul(df_GRD.unflatten(0, self.shape), f_GRD.clamp(max=1).unflatten(0, self.shape), out=out_BHRD)


def batches(q_BHND: Tensor, width: int, rows: int) -> Iterator[tuple[slice, Buffers]]:
    """A few items of the batch at a time, and buffers for them."""
    batch, heads, _, dim = q_BHND.shape
    step = max(1, HEADS_AT_ONCE // heads)
    buffers = None
    for first in range(0, batch, step):
        items = min(step, batch - first)
        if buffers is None or buffers.shape[0] != items:
            buffers = Buffers(q_BHND, items, heads, rows, dim, width)
        yield slice(first, first + items), buffers


def blocks(length: int, rows: int) -> list[slice]:
    return [slice(first, min(first + rows, length)) for first in range(0, length, rows)]


class FullSums(Function):
    """num = phi(q) S with S = phi(k)^T w: two products."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, one: Tensor, learning: bool) -> Tensor:
        (B, H, N, D), W = q.shape, v.shape[3] + 1
        y, inverse = q.new_empty(B, H, N, W - 1), q.new_empty(B, H, N, 1)
        S_BHDW = q.new_zeros(B, H, D, W)
        with full_precision(q):
            for items, buffers in batches(q, W, LONG_BLOCK):
                S = S_BHDW[items].flatten(0, 1)
                for rows in blocks(k.shape[2], LONG_BLOCK):
                    fk = buffers.phi(k[items, :, rows], buffers.fk)
                    S.baddbmm_(fk.mT, buffers.beside(v[items, :, rows], one[items, :, rows]))
                for rows in blocks(N, LONG_BLOCK):
                    fq = buffers.phi(q[items, :, rows], buffers.fq)
                    num = torch.bmm(fq, S, out=buffers.num[:, : fq.shape[1]])
                    buffers.divide(num, y[items, :, rows], inverse[items, :, rows])
        if learning:
            ctx.save_for_backward(q, k, v, one, y, inverse, S_BHDW)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, one, y, inverse, S_BHDW = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        dq, dk, dv = (q.new_empty(t.shape) if need else None for t, need in zip((q, k, v), needs, strict=True))
        with full_precision(q):
            for items, buffers in batches(q, v.shape[3] + 1, LONG_BLOCK):
                S, dS = S_BHDW[items].flatten(0, 1), torch.zeros_like(S_BHDW[items]).flatten(0, 1)
                for rows in blocks(q.shape[2], LONG_BLOCK):
                    fq = buffers.phi(q[items, :, rows], buffers.fq)
                    dnum = buffers.gradient_of_num(dy[items, :, rows], y[items, :, rows], inverse[items, :, rows])
                    dS.baddbmm_(fq.mT, dnum)
                    if dq is not None:
                        buffers.through_phi(torch.bmm(dnum, S.mT), fq, dq[items, :, rows])
                for rows in blocks(k.shape[2], LONG_BLOCK):
                    fk = buffers.phi(k[items, :, rows], buffers.fk)
                    if dk is not None:
                        w = buffers.beside(v[items, :, rows], one[items, :, rows])
                        buffers.through_phi(torch.bmm(w, dS.mT), fk, dk[items, :, rows])
                    if dv is not None:
                        dv[items, :, rows] = torch.bmm(fk, dS[..., :-1]).unflatten(0, buffers.shape)
        return dq, dk, dv, None, None


class CausalSums(Function):
    """num_i = phi(q_i).sum_{j <= i} phi(k_j) w_j^T: a masked product within the block, S before it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, one: Tensor, learning: bool) -> Tensor:
        (B, H, N, D), W = q.shape, v.shape[3] + 1
        y, inverse = q.new_empty(B, H, N, W - 1), q.new_empty(B, H, N, 1)
        past = q.new_empty(len(blocks(N, BLOCK)), B, H, D, W) if learning else None  # S before each block
        with full_precision(q):
            for items, buffers in batches(q, W, BLOCK):
                S = q.new_zeros(*buffers.shape, D, W).flatten(0, 1)
                product = q.new_empty(S.shape[0], BLOCK, BLOCK)
                for n, rows in enumerate(blocks(N, BLOCK)):
                    fq = buffers.phi(q[items, :, rows], buffers.fq)
                    fk = buffers.phi(k[items, :, rows], buffers.fk)
                    w = buffers.beside(v[items, :, rows], one[items, :, rows])
                    R = w.shape[1]
                    within = torch.bmm(fq, fk.mT, out=product[:, :R, :R]).tril_()
                    num = torch.bmm(within, w, out=buffers.num[:, :R]).baddbmm_(fq, S)
                    buffers.divide(num, y[items, :, rows], inverse[items, :, rows])
                    if past is not None:
                        past[n, items] = S.unflatten(0, buffers.shape)
                    S.baddbmm_(fk.mT, w)
        if learning:
            ctx.save_for_backward(q, k, v, one, y, inverse, past)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, one, y, inverse, past = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        dq, dk, dv = (q.new_empty(t.shape) if need else None for t, need in zip((q, k, v), needs, strict=True))
        with full_precision(q):
            for items, buffers in batches(q, v.shape[3] + 1, BLOCK):
                dS = torch.zeros_like(past[0, items]).flatten(0, 1)  # from the queries of later blocks
                product = q.new_empty(dS.shape[0], BLOCK, BLOCK)
                for n, rows in reversed([*enumerate(blocks(q.shape[2], BLOCK))]):
                    S = past[n, items].flatten(0, 1)
                    fq = buffers.phi(q[items, :, rows], buffers.fq)
                    fk = buffers.phi(k[items, :, rows], buffers.fk)
                    w = buffers.beside(v[items, :, rows], one[items, :, rows])
                    dnum = buffers.gradient_of_num(dy[items, :, rows], y[items, :, rows], inverse[items, :, rows])
                    product_RR = product[:, : w.shape[1], : w.shape[1]]
                    if dv is not None:
                        within = torch.bmm(fq, fk.mT, out=product_RR).tril_()
                        dv_GRE = torch.bmm(within.mT, dnum[..., :-1]).baddbmm_(fk, dS[..., :-1])
                        dv[items, :, rows] = dv_GRE.unflatten(0, buffers.shape)
                    dwithin = torch.bmm(dnum, w.mT, out=product_RR).tril_()
                    if dq is not None:
                        buffers.through_phi(torch.bmm(dwithin, fk).baddbmm_(dnum, S.mT), fq, dq[items, :, rows])
                    if dk is not None:
                        buffers.through_phi(torch.bmm(dwithin.mT, fq).baddbmm_(w, dS.mT), fk, dk[items, :, rows])
                    dS.baddbmm_(fq.mT, dnum)
        return dq, dk, dv, None, None
