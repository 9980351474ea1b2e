"""Attention through features: y_i = phi(q_i).sum_j phi(k_j) v_j^T / phi(q_i).sum_j phi(k_j), in time linear in N.

A feature map says what phi is. What keys leave behind is S = sum_j phi(k_j) v_j^T, z = sum_j phi(k_j) and, where phi is
exponential, the shift s that keeps it in range: phi(k) = exp(u(k) - s), phi(q) = exp(u(q) + s - c). s is one number
a feature, c one a query; both cancel in the fraction, so there is no epsilon, and any s will do that keeps the largest
terms in range. In causal order s comes from the past alone: the future does not show, not even in the last bit.

`gather` takes keys to sums, `read` takes queries and sums to outputs, `scan` does both in causal order, from sums to
sums. Each works on chunks of rows that stay in cache and has its backward pass written out.

Shapes   B batch, H heads, N queries, M keys, D key dim, E value dim, F features; in a chunk of some items
         G items x heads, L rows, in causal order n blocks of R rows
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from anyformer.contract import Attention, check_query, check_same, require_positive
from anyformer.parts.precision import precise, precision, without_autocast
from anyformer.parts.room import Room

CACHED = 2048  # rows x heads of a chunk, whose features stay in cache
BLOCK = 64  # rows of a causal block: more would waste work above the diagonal, fewer make products small
FURTHEST = 40.0  # how far a key's exponent may be above the shift: exp(40), summed and squared, still fits float32
NOTHING = -1e30  # the shift while no key was seen; finite, so that differences are never NaN


class Sums(NamedTuple):
    """All that is remembered of the keys and values so far."""

    S_BHFE: Tensor
    z_BHF: Tensor
    s_BHF: Tensor
    position: int


class FeatureMap(ABC):
    """What phi is. x and its features have any leading shape and layout."""

    features: int
    drawn: int = 0  # random projections of x that they are made of
    exponential: bool = False  # phi(x) = exp(u(x)) up to a factor a query, and `raw` gives u

    @abstractmethod
    def raw(self, x: Tensor, out: Tensor, room: Room, *, query: bool) -> None:
        """phi(x), or u(x), into `out`; `room` has memory to work in."""

    @abstractmethod
    def pull(self, df: Tensor, f: Tensor, x: Tensor, room: Room, *, query: bool) -> Tensor:
        """dx, from df (which may be overwritten) and f = phi(x)."""


class FeatureAttention(Attention):
    """The fast form of every attention that is a feature map between two sums."""

    @property
    @abstractmethod
    def phi(self) -> FeatureMap:
        """The feature map as it is now."""

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        if not self.causal:
            return read(self.phi, q, gather(self.phi, k, v, keep_BM)).to(v.dtype)
        past = k.shape[2] - q.shape[2]  # keys before the first query
        sums = nothing(self.phi, q, v)
        if past:
            sums = gather(self.phi, k[:, :, :past], v[:, :, :past], None if keep_BM is None else keep_BM[:, :past])
            k, v, keep_BM = k[:, :, past:], v[:, :, past:], None if keep_BM is None else keep_BM[:, past:]
        return scan(self.phi, q, k, v, keep_BM, sums)[0].to(v.dtype)

    def least(self, queries: int, keys: int) -> float:
        """The projections of each token, and its part in the sums and in the fraction."""
        each = self.phi.drawn * self.head_dim + self.phi.features * (self.head_dim + 1)
        return 2.0 * self.heads * each * (queries + keys)

    def hold(self, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Sums:
        nobody = k_BHMD.new_zeros(k_BHMD.shape[0], self.heads, 1, self.head_dim)
        _, k, v = self.checked(nobody, k_BHMD, v_BHME, keep_BM)
        return gather(self.phi, k, v, keep_BM)

    def read(self, q_BHND: Tensor, held: Sums) -> Tensor:
        check_query(self, q_BHND)
        check_sums(held, q_BHND, held.S_BHFE.shape[-1])
        return read(self.phi, q_BHND, held).to(q_BHND.dtype)

    def begin(self, batch: int, like: Tensor) -> Sums:
        self.require_streaming()
        require_positive(batch=batch)
        empty = like.new_zeros(batch, self.heads, 0, self.head_dim)
        return nothing(self.phi, empty, empty)

    def extend(
        self, q_BHND: Tensor, k_BHND: Tensor, v_BHNE: Tensor, state: Any, keep_BN: Tensor | None = None
    ) -> tuple[Tensor, Sums]:
        self.check_chunk(q_BHND, k_BHND, v_BHNE, state, Sums, keep_BN)
        q, k, v = self.checked(q_BHND, k_BHND, v_BHNE, keep_BN)
        if state.position == 0:  # values as wide as the first ones seen
            state = nothing(self.phi, q, v)
        check_sums(state, q, v.shape[-1])
        y, state = scan(self.phi, q, k, v, keep_BN, state)
        return y.to(v.dtype), state


def check_sums(sums: Sums, q: Tensor, width: int) -> None:
    if sums.S_BHFE.shape[0] != q.shape[0]:
        raise ValueError(f"the sums are for a batch of {sums.S_BHFE.shape[0]}, not {q.shape[0]}")
    if sums.S_BHFE.shape[-1] != width:
        raise ValueError(f"v has heads of {width}, and those before had {sums.S_BHFE.shape[-1]}; stream all alike")
    check_same("q", q.to(precision(q)), "the sums", sums.S_BHFE)


def nothing(phi: FeatureMap, q: Tensor, v: Tensor) -> Sums:
    """The sums over no keys."""
    S = q.new_zeros(*q.shape[:2], phi.features, v.shape[3], dtype=precision(q))
    z = S.new_zeros(S.shape[:3])
    return Sums(S, z, torch.full_like(z, NOTHING), 0)


def divided(num_BHNE: Tensor, den_BHN1: Tensor) -> Tensor:
    """Zero where no key was seen."""
    return num_BHNE / den_BHN1.masked_fill(den_BHN1 == 0, 1)


def gather(phi: FeatureMap, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None) -> Sums:
    """The sums over all keys, in float32 at least: there may be thousands."""
    k, v = precise(k_BHMD, v_BHME)
    S, z, s = Gather.apply(phi, k, v, keep_BM)
    return Sums(S, z, s, k.shape[2])


def read(phi: FeatureMap, q_BHND: Tensor, sums: Sums) -> Tensor:
    """What queries find that see every key of the sums; zero if there is none."""
    (q,) = precise(q_BHND)
    return Read.apply(phi, q, *sums[:3])


def scan(
    phi: FeatureMap, q_BHND: Tensor, k_BHND: Tensor, v_BHNE: Tensor, keep_BN: Tensor | None, before: Sums
) -> tuple[Tensor, Sums]:
    """Each query sees the keys up to its own and those of the sums before; also the sums after."""
    q, k, v = precise(q_BHND, k_BHND, v_BHNE)
    learning = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, *before[:3]))
    y, S, z, s = Scan.apply(phi, q, k, v, keep_BN, *before[:3], learning)
    return y, Sums(S, z, s, before.position + k.shape[2])


def items_at_once(shape: torch.Size) -> int:
    """Several items together only where each is there whole."""
    _, heads, length, _ = shape
    return max(1, CACHED // (heads * length))


def rows_at_once(shape: torch.Size) -> int:
    return min(512, max(BLOCK, CACHED // shape[1] // BLOCK * BLOCK))


def chunks(shape: torch.Size) -> Iterator[tuple[slice, slice]]:
    """Items and rows whose features stay in cache."""
    items, rows = items_at_once(shape), rows_at_once(shape)
    for item in range(0, shape[0], items):
        for row in range(0, shape[2], rows):
            yield slice(item, item + items), slice(row, row + rows)


def of_keys(phi: FeatureMap, k: Tensor, keep: Tensor | None, s: Tensor | None, room: Room) -> Tensor:
    """phi(k) under the shift, zero where a key is padding; u(k), and minus infinity there, if no shift is given."""
    out = room("fk", *k.shape[:-1], phi.features)
    phi.raw(k, out, room, query=False)
    logarithm = phi.exponential and s is None
    if phi.exponential and s is not None:
        out.sub_(s).exp_()
    if keep is not None:
        out.masked_fill_(~keep, -torch.inf if logarithm else 0)
    return out


def of_queries(phi: FeatureMap, q: Tensor, s: Tensor, room: Room) -> Tensor:
    """phi(q); if exponential, the features sum to one."""
    out = room("fq", *q.shape[:-1], phi.features)
    phi.raw(q, out, room, query=True)
    return torch.softmax(out.add_(s), -1, out=out) if phi.exponential else out


def flat(t: Tensor, room: Room, name: str) -> Tensor:
    """(items, heads, L, X) -> (G, L, X), copied only where it must be."""
    if t.shape[0] == 1:
        return t[0]
    return room(name, *t.shape).copy_(t).flatten(0, 1)


def inverse(den: Tensor) -> Tensor:
    """1 / den in place, zero where no key was seen."""
    return den.reciprocal_().nan_to_num_(posinf=0)


class Gather(Function):
    @staticmethod
    def forward(ctx: Any, phi: FeatureMap, k: Tensor, v: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        S = k.new_zeros(*k.shape[:2], phi.features, v.shape[3])
        z = S.new_zeros(S.shape[:3])
        s = torch.full_like(z, NOTHING)
        room = Room(k)
        with without_autocast(k):
            for items, rows in chunks(k.shape):
                k_, S_, z_, s_ = k[items, :, rows], S[items].flatten(0, 1), z[items], s[items]
                kept = None if keep is None else keep[items, None, rows, None]
                f = of_keys(phi, k_, kept, None, room)
                if phi.exponential:
                    higher = torch.maximum(s_, f.amax(2))
                    rescale(S_, z_, s_ - higher)
                    s_.copy_(higher)
                    f.sub_(s_.unsqueeze(2)).exp_()
                S_.baddbmm_(f.flatten(0, 1).mT, flat(v[items, :, rows], room, "v"))
                z_.add_(f.sum(2))
        ctx.phi = phi
        ctx.save_for_backward(k, v, keep, s)
        ctx.mark_non_differentiable(s)
        return S, z, s

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dS: Tensor, dz: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        k, v, keep, s = ctx.saved_tensors
        phi: FeatureMap = ctx.phi
        dk = torch.empty_like(k) if ctx.needs_input_grad[1] else None
        dv = torch.empty_like(v) if ctx.needs_input_grad[2] else None
        room = Room(k)
        with without_autocast(k):
            for items, rows in chunks(k.shape):
                k_, v_, dS_ = k[items, :, rows], v[items, :, rows], dS[items].flatten(0, 1)
                kept = None if keep is None else keep[items, None, rows, None]
                f = of_keys(phi, k_, kept, s[items].unsqueeze(2), room)
                if dv is not None:
                    part = room("df", *v_.shape)
                    torch.bmm(f.flatten(0, 1), dS_, out=part.flatten(0, 1))
                    dv[items, :, rows] = part
                if dk is not None:
                    df = room("df", *f.shape)
                    torch.bmm(flat(v_, room, "v"), dS_.mT, out=df.flatten(0, 1))
                    dk[items, :, rows] = phi.pull(df.add_(dz[items].unsqueeze(2)), f, k_, room, query=False)
        return None, dk, dv, None


class Read(Function):
    @staticmethod
    def forward(ctx: Any, phi: FeatureMap, q: Tensor, S: Tensor, z: Tensor, s: Tensor) -> Tensor:
        y = q.new_empty(*q.shape[:3], S.shape[3])
        inv = q.new_empty(*q.shape[:3], 1)
        room = Room(q)
        with without_autocast(q):
            for items, rows in chunks(q.shape):
                q_, y_, inv_ = (t[items, :, rows] for t in (q, y, inv))
                f = of_queries(phi, q_, s[items].unsqueeze(2), room).flatten(0, 1)
                num = room("num", *y_.shape)
                torch.bmm(f, S[items].flatten(0, 1), out=num.flatten(0, 1))
                inv_.copy_(inverse(torch.bmm(f, z[items].flatten(0, 1).unsqueeze(-1))).view_as(inv_))
                torch.mul(num, inv_, out=y_)
        ctx.phi = phi
        ctx.save_for_backward(q, S, z, s, y, inv)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, S, z, s, y, inv = ctx.saved_tensors
        phi: FeatureMap = ctx.phi
        dq = torch.empty_like(q) if ctx.needs_input_grad[1] else None
        dS, dz = torch.zeros_like(S), torch.zeros_like(z)
        room = Room(q)
        with without_autocast(q):
            for items, rows in chunks(q.shape):
                q_, y_, inv_, dy_ = (t[items, :, rows] for t in (q, y, inv, dy))
                f = of_queries(phi, q_, s[items].unsqueeze(2), room)
                dnum, dden = through_fraction(dy_, y_, inv_, room)
                dS[items].flatten(0, 1).baddbmm_(f.flatten(0, 1).mT, dnum.flatten(0, 1))
                df = room("df", *f.shape)
                dz[items] += torch.mul(f, dden, out=df).sum(2)
                if dq is not None:
                    torch.bmm(dnum.flatten(0, 1), S[items].flatten(0, 1).mT, out=df.flatten(0, 1))
                    dq[items, :, rows] = phi.pull(df.addcmul_(dden, z[items].unsqueeze(2)), f, q_, room, query=True)
        return None, dq, dS, dz, None


def through_fraction(dy: Tensor, y: Tensor, inv: Tensor, room: Room) -> tuple[Tensor, Tensor]:
    """y = num / den  =>  dnum = dy / den,  dden = -dnum.y"""
    dnum = torch.mul(dy, inv, out=room("dnum", *dy.shape))
    return dnum, torch.mul(dnum, y, out=room("spare", *dy.shape)).sum(-1, keepdim=True).neg_()


# Causal order: blocks of rows meet their own keys in a masked product, and earlier ones through the sums before them.


def blocked(t: Tensor) -> Tensor:
    """(items, heads, L, X) -> (n, items, heads, R, X); zeros fill up the last block."""
    R = min(BLOCK, t.shape[2])
    if t.shape[2] % R:
        t = torch.nn.functional.pad(t, (0, 0, 0, R - t.shape[2] % R))
    return t.unflatten(2, (-1, R)).permute(2, 0, 1, 3, 4)


def unblocked(t: Tensor, into: Tensor) -> None:
    """(n, items, heads, R, X) into (items, heads, rows, X), without what filled up the last block."""
    R = t.shape[3]
    whole, rest = divmod(into.shape[2], R)
    into[:, :, : whole * R].unflatten(2, (whole, R)).copy_(t[:whole].permute(1, 2, 0, 3, 4))
    if rest:
        into[:, :, whole * R :] = t[whole, :, :, :rest]


def running(S_GFE: Tensor, a: Tensor, b: Tensor, sums: Tensor, *, backwards: bool = False) -> Tensor:
    """S with a_i^T b_i of one block after the other added, into `sums` (n + 1, G, F, E)."""
    n = len(a)
    sums[n if backwards else 0] = S_GFE
    for i in range(n - 1, -1, -1) if backwards else range(n):
        before, after = (i + 1, i) if backwards else (i, i + 1)
        torch.baddbmm(sums[before], a[i].flatten(0, 1).mT, b[i].flatten(0, 1), out=sums[after])
    return sums


def raise_shift(u: Tensor, rows: int, S: Tensor, z: Tensor, s: Tensor) -> int:
    """Subtract from u, for one item, the shift of the past or of the first row, whichever is higher.

    S, z and s are brought to it in place. Returned is how many rows stay in range; nothing else is said of the others.
    """
    higher = torch.maximum(s, u[0, :, :, 0])
    rescale(S, z, s - higher)
    s.copy_(higher)
    u.sub_(s.unsqueeze(2))
    if u.is_meta:
        return rows
    beyond = (u.amax((1, 2, 4)) > FURTHEST).flatten()[:rows]
    return int(beyond.to(torch.uint8).argmax()) if beyond.any() else rows


def rescale(S_GFE: Tensor, z: Tensor, exponent: Tensor) -> None:
    S_GFE.mul_(exponent.flatten(0, 1).unsqueeze(-1).exp())
    z.mul_(exponent.exp())


class Scan(Function):
    @staticmethod
    def forward(
        ctx: Any,
        phi: FeatureMap,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        S: Tensor,
        z: Tensor,
        s: Tensor,
        learning: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        s_before = s
        S, z, s = S.clone(), z.clone(), s.clone()
        y = q.new_empty(*q.shape[:3], v.shape[3])
        inv = q.new_empty(*q.shape[:3], 1)
        steps: list[tuple[slice, slice]] = []
        saved: list[Tensor] = []
        together = 1 if phi.exponential else items_at_once(q.shape)
        room = Room(q)
        with without_autocast(q):
            for item in range(0, q.shape[0], together):
                items, rows, most = slice(item, item + together), slice(0, 0), rows_at_once(q.shape)
                S_, z_, s_ = S[items].flatten(0, 1), z[items], s[items]
                while rows.stop < q.shape[2]:
                    rows = slice(rows.stop, min(rows.stop + most, q.shape[2]))
                    good = L = rows.stop - rows.start
                    q_, k_, v_ = (blocked(t[items, :, rows]) for t in (q, k, v))
                    kept = None if keep is None else blocked(keep[items, None, rows, None])
                    fk = of_keys(phi, k_, kept, None, room)
                    if phi.exponential:
                        good = raise_shift(fk, L, S_, z_, s_)
                        most = rows_at_once(q.shape) if good == L else BLOCK  # less to do again
                        fk.exp_()
                    without(fk, good)
                    fq = of_queries(phi, q_, s_.unsqueeze(2), room)
                    w = room("w", *v_.shape).copy_(v_)
                    if learning:
                        saved += [S_.clone(), z_.clone(), s_.clone()]
                    fk_, fq_, w_ = (t.flatten(0, 2) for t in (fk, fq, w))
                    n, R = fk.shape[0], fk.shape[3]
                    before = running(S_, fk, w, room("before", n + 1, *S_.shape))
                    within = torch.bmm(fq_, fk_.mT, out=room("within", len(fk_), R, R)).tril_()
                    num = torch.bmm(within, w_, out=room("num", *w_.shape))
                    num.baddbmm_(fq_, before[:-1].flatten(0, 1))
                    z_before = torch.cat([z_.unsqueeze(0), fk.sum(3)]).cumsum(0)
                    den = within.sum(-1).view(fq.shape[:4]).add_(fq.mul_(z_before[:-1].unsqueeze(3)).sum(-1))
                    S_.copy_(before[-1])
                    z_.copy_(z_before[-1])
                    rows = slice(rows.start, rows.start + good)
                    steps.append((items, rows))
                    den = inverse(den).unsqueeze(-1)
                    unblocked(den, inv[items, :, rows])
                    unblocked(num.view(w.shape).mul_(den), y[items, :, rows])
        ctx.phi, ctx.steps = phi, steps
        if learning:
            ctx.save_for_backward(q, k, v, keep, y, inv, s_before, s, *saved)
        ctx.mark_non_differentiable(s)
        return y, S, z, s

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dS: Tensor, dz: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, y, inv, s_before, shift, *saved = ctx.saved_tensors
        phi: FeatureMap = ctx.phi
        needs = ctx.needs_input_grad[1:4]
        dq, dk, dv = (torch.empty_like(t) if need else None for t, need in zip((q, k, v), needs, strict=True))
        dS, dz, shift = dS.clone(), dz.clone(), shift.clone()
        room = Room(q)
        with without_autocast(q):
            for step, (items, rows) in reversed([*enumerate(ctx.steps)]):
                S_, z_, s_ = saved[3 * step : 3 * step + 3]
                L = rows.stop - rows.start
                q_, k_, v_, dy_, y_, inv_ = (blocked(t[items, :, rows]) for t in (q, k, v, dy, y, inv))
                kept = None if keep is None else blocked(keep[items, None, rows, None])
                fk = of_keys(phi, k_, kept, s_.unsqueeze(2), room)
                without(fk, L)
                fq = of_queries(phi, q_, s_.unsqueeze(2), room)
                w = room("w", *v_.shape).copy_(v_)
                dnum, dden = through_fraction(dy_, y_, inv_, room)
                dS_, dz_ = dS[items].flatten(0, 1), dz[items]
                if phi.exponential:
                    rescale(dS_, dz_, s_ - shift[items])
                    shift[items] = s_
                fk_, fq_, w_, dnum_, dden_ = (t.flatten(0, 2) for t in (fk, fq, w, dnum, dden))
                n, R = fk.shape[0], fk.shape[3]
                later = running(dS_, fq, dnum, room("later", n + 1, *S_.shape), backwards=True)
                dS_.copy_(later[0])
                later = later[1:].flatten(0, 1)
                square, df = room("within", len(fk_), R, R), room("df", *fk.shape)
                z_before = torch.cat([z_.unsqueeze(0), fk.sum(3)]).cumsum(0)[:-1]
                t = torch.mul(fq, dden, out=df).sum(3)
                dz_later = torch.cat([dz_.unsqueeze(0), t.flip(0)]).cumsum(0).flip(0)
                dz_.copy_(dz_later[0])
                if dv is not None:
                    within = torch.bmm(fq_, fk_.mT, out=square).tril_()
                    dw = torch.bmm(within.mT, dnum_, out=room("spare", *w_.shape)).baddbmm_(fk_, later)
                    unblocked(dw.view(w.shape), dv[items, :, rows])
                dwithin = torch.bmm(dnum_, w_.mT, out=square).add_(dden_).tril_()
                if dk is not None:
                    torch.bmm(dwithin.mT, fq_, out=df.flatten(0, 2)).baddbmm_(w_, later.mT)
                    df.add_(dz_later[1:].unsqueeze(3))
                    unblocked(phi.pull(df, fk, k_, room, query=False), dk[items, :, rows])
                if dq is not None:
                    before = running(S_, fk, w, room("later", n + 1, *S_.shape))[:-1].flatten(0, 1)
                    torch.bmm(dwithin, fk_, out=df.flatten(0, 2)).baddbmm_(dnum_, before.mT)
                    df.addcmul_(dden, z_before.unsqueeze(3))
                    unblocked(phi.pull(df, fq, q_, room, query=True), dq[items, :, rows])
            if phi.exponential:
                rescale(dS.flatten(0, 1), dz, s_before - shift)
        return None, dq, dk, dv, None, dS, dz, None, None


def without(f: Tensor, rows: int) -> None:
    """No features from this row on."""
    n, R = rows // f.shape[3], rows % f.shape[3]
    f[n : n + 1, :, :, R:] = 0
    f[n + 1 :] = 0
