"""Lambda layer: the context becomes one small matrix for each query, made of contents and of relative positions.

Paper    Bello 2021, LambdaNetworks: Modeling Long-Range Interactions Without Attention, arXiv:2102.08602, section 3
         y_n^h = (L^c + L^p_n)^T q_n^h          the same lambdas for all heads, whose outputs stand side by side
         content lambda   L^c   = sum_m kbar_m v_m^T        kbar = softmax of each key channel over the context
         position lambda  L^p_n = sum_m e_nm v_m^T          e_nm learned for the offset m - n
         with an intra-depth u, keys, values and e come u times, and lambdas sum over it too; queries and values are
         batch-normalised; local: e_nm is zero outside a neighbourhood of n, and contents stay global
Symbols  |k| -> key_depth, |v| -> dim / heads, |u| -> intra_depth, |h| -> heads; window is the whole extent of the
         neighbourhood: 7 means 7 or 7 x 7 positions; e is `positions`, by row and column of the offset, in ascending
         order, and without the future when causal
Shapes   B batch, N queries, M keys, C model dim, H heads, K key depth, U intra-depth, V value depth;
         Y X rows and columns of the grid (in one dimension a single row), T tiles in a row, P queries in a tile,
         S columns of keys that a tile sees; inside a product G items x tiles, Q heads x G, R rows x S x U
Differs  no position lambda is made: q.e comes first and weighs the values, which are H (K + V) products for each pair
         instead of K V, and memory linear in N. Ours are causal order (kbar is normalised over what each query sees,
         the paper's over the whole context; batch statistics see all tokens in training), padding (which enters
         neither keys, values nor batch statistics) and cross-attention (queries and keys both count from 0; when
         causal, the queries are the last positions). e starts normal with 1 / sqrt(K x offsets), so that all of them
         together weigh about as much as one value; timm takes 1 / sqrt(K) or 0.02, lambda-networks 1
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, finfo, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import linear, pad

from anyformer.card import Card, able
from anyformer.contract import Mixer, check_tokens, require_bool, require_positive, without_padding
from anyformer.parts.masks import pairs
from anyformer.parts.precision import precise, without_autocast

Scope = Literal["global", "local"]

WINDOW = 7
TILE = 16  # queries that look at the whole context together, and rows of a causal block
HIGH = 2  # rows of a neighbourhood's tile
TILES_AT_ONCE = 128  # in one product: more leave the cache


class LambdaLayer(Mixer):
    card = Card(
        title="lambda layer",
        paper="Bello 2021, LambdaNetworks: Modeling Long-Range Interactions Without Attention, arXiv:2102.08602",
        year=2021,
        slot="mixer",
        causal="option",
        cross=True,
        padding=True,
        stream="none",
        state="none",
        time=2,
        memory=1,
        price="Another function than softmax, with learned positions for a fixed length or window, and batch "
        "statistics in training.",
        block=16,
        batch_statistics=True,
        order=True,
        tiny={"dim": 16, "heads": 2, "key_depth": 4, "intra_depth": 2, "max_length": 40},
        variants={
            "global": {"scope": "global", "axes": 1},
            "local": {"scope": "local", "axes": 1},
            "global2d": {"scope": "global", "axes": 2},
            "local2d": {"scope": "local", "axes": 2},
        },
        overrides={
            "local": {
                "time": 1,
                "tiny": {"dim": 16, "heads": 2, "key_depth": 4, "intra_depth": 2, "window": 5},
            },
            "global2d": {
                "causal": "no",
                "cross": False,
                "tiny": {"dim": 16, "heads": 2, "key_depth": 4, "intra_depth": 2, "grid": (3, 7)},
            },
            "local2d": {
                "causal": "no",
                "cross": False,
                "time": 1,
                "tiny": {"dim": 16, "heads": 2, "key_depth": 4, "intra_depth": 2, "grid": (3, 7), "window": 5},
            },
        },
    )

    def __init__(
        self,
        *,
        dim: int,
        causal: bool = False,
        heads: int = 4,
        key_depth: int = 16,
        intra_depth: int = 1,
        scope: Scope = "global",
        axes: Literal[1, 2] = 1,
        max_length: int | None = None,
        grid: tuple[int, int] | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        require_positive(dim=dim, heads=heads, key_depth=key_depth, intra_depth=intra_depth)
        check_options(scope, axes, causal, max_length=max_length, grid=grid, window=window)
        if dim % heads:
            raise ValueError(f"dim={dim} does not divide into {heads} heads: give heads= a divisor of {dim}")
        self.dim, self.causal, self.heads, self.scope, self.axes = dim, causal, heads, scope, axes
        self.max_length, self.grid = max_length, None if grid is None else (grid[0], grid[1])
        self.window = None if scope == "global" else window or WINDOW

        rows, columns = self.grid or (1, max_length or 1)
        self.left = self.window // 2 if self.window else columns - 1
        self.right = 0 if causal else self.left
        self.up = 0 if axes == 1 else self.window // 2 if self.window else rows - 1

        self.parts = heads, intra_depth, intra_depth  # of q, k and v
        self.depths = heads * key_depth, intra_depth * key_depth, intra_depth * (dim // heads)
        self.qkv = nn.Linear(dim, sum(self.depths), bias=False)
        self.norm_q, self.norm_v = nn.BatchNorm1d(self.depths[0]), nn.BatchNorm1d(self.depths[2])
        offsets = 2 * self.up + 1, self.left + 1 + self.right
        self.positions = nn.Parameter(torch.empty(*offsets, intra_depth, key_depth))
        nn.init.normal_(self.qkv.weight, std=dim**-0.5)
        nn.init.normal_(self.positions, std=(key_depth * offsets[0] * offsets[1]) ** -0.5)

    def formula(self, x_BNC: Tensor, context_BMC: Tensor | None = None, *, keep: Tensor | None = None) -> Tensor:
        q, k, v = self.project(x_BNC, context_BMC, keep)
        e_NMUK, sees_NM = self.embeddings(q.shape[1], k.shape[1])
        sees_BNM11 = (sees_NM[None] if keep is None else sees_NM & keep[:, None])[..., None, None]
        kbar_BNMUK = k[:, None].masked_fill(~sees_BNM11, finfo(k.dtype).min).softmax(2) * sees_BNM11
        content_BNKV = torch.einsum("bnmuk,bmuv->bnkv", kbar_BNMUK, v)
        position_BNKV = torch.einsum("nmuk,bmuv->bnkv", e_NMUK, v)
        return torch.einsum("bnhk,bnkv->bnhv", q, content_BNKV + position_BNKV).flatten(2).to(x_BNC.dtype)

    def embeddings(self, queries: int, keys: int) -> tuple[Tensor, Tensor]:
        """e for every query and key, and which keys a query sees at all."""
        columns = self.grid[1] if self.grid else max(queries, keys)
        n, m = (torch.arange(length, device=self.positions.device) for length in (queries, keys))
        n = n[:, None] + (keys - queries if self.causal else 0)
        down, right = m // columns - n // columns, m % columns - n % columns
        near = (down.abs() <= self.up) & (right >= -self.left) & (right <= self.right)
        e_NMUK = self.positions[(down + self.up).where(near, 0), (right + self.left).where(near, 0)]
        return precise(e_NMUK)[0] * near[..., None, None], (m <= n) | (not self.causal)

    def forward(self, x_BNC: Tensor, context_BMC: Tensor | None = None, *, keep: Tensor | None = None) -> Tensor:
        q, k, v = self.project(x_BNC, context_BMC, keep)
        with without_autocast(x_BNC):
            if self.causal:
                y_BNHV = past_contents(q, k, v, keep) + self.applied(q, None, v)
            else:
                if keep is not None:  # where every key is padding, the values are zero
                    k = k.masked_fill(~keep[:, :, None, None], finfo(k.dtype).min)
                content_BKV = k.softmax(1).flatten(1, 2).mT @ v.flatten(1, 2)
                y_BNHV = self.applied(q, content_BKV, v)
        return y_BNHV.flatten(2).to(x_BNC.dtype)

    def applied(self, q_BNHK: Tensor, content_BKV: Tensor | None, v_BMUV: Tensor) -> Tensor:
        """The lambdas applied to the queries, of which a tile at a time meets the keys that any of them sees."""
        rows, columns = self.grid or (1, q_BNHK.shape[1])
        q_BYXHK, v_BYXUV = q_BNHK.unflatten(1, (rows, -1)), v_BMUV.unflatten(1, (rows, -1))
        (e_YXUK,) = precise(self.positions)
        if self.window is None:
            high, wide = 1, min(TILE, columns)
            v_BTYSUV, e, first = self.whole_rows(v_BYXUV, e_YXUK, wide, columns)
        else:
            high, wide = HIGH if self.up else 1, min(max(self.left + 1, 4 if self.up else 8), columns)
            v_BTYSUV, e = self.neighbourhoods(v_BYXUV, e_YXUK, (high, wide), columns)
            first = None
        missing = -columns % wide
        if missing:
            q_BYXHK = pad(q_BYXHK, (0, 0, 0, 0, 0, missing))
        plan = Plan(high, self.up, first, columns if self.causal else None)
        y_BYTPHV = Lambdas.apply(q_BYXHK.unflatten(2, (-1, wide)), content_BKV, v_BTYSUV, e, plan)
        return y_BYTPHV.flatten(2, 3)[:, :, :columns].flatten(1, 2)

    def neighbourhoods(
        self, v_BYXUV: Tensor, e_YXUK: Tensor, tile: tuple[int, int], columns: int
    ) -> tuple[Tensor, Tensor]:
        """The columns of values that each tile sees, overlapping; e between the places of a tile and those."""
        (high, wide), keys = tile, v_BYXUV.shape[2]
        seen, tiles = self.left + wide + self.right, -(-columns // wide)
        further = -(-seen // wide) - 1  # tiles that begin within those columns, beside the first
        before = self.left - (keys - columns if self.causal else 0)  # below zero, what no query sees is left out
        after = (tiles + further) * wide - before - keys
        v_BTYPUV = pad(v_BYXUV, (0, 0, 0, 0, before, after)).unflatten(2, (-1, wide)).transpose(1, 2)
        parts = [v_BTYPUV[:, n : n + tiles, :, : seen - n * wide] for n in range(further + 1)]
        e_YXUK = pad(e_YXUK, (0, 0, 0, 0, wide - 1, wide - 1, high - 1, high - 1))
        e = e_YXUK.unfold(0, 2 * self.up + high, 1).unfold(1, seen, 1).flip(0, 1).permute(0, 1, 4, 5, 2, 3)
        return torch.cat(parts, 3), e.flatten(0, 1).contiguous()

    def whole_rows(self, v_BYXUV: Tensor, e_YXUK: Tensor, tile: int, columns: int) -> tuple[Tensor, Tensor, int]:
        """All values, in reverse, so that e of a query in column p and the key in place s is that of place p + s."""
        keys = v_BYXUV.shape[2]
        future = tile - 1 if self.causal else 0
        e_YXUK = pad(e_YXUK.flip(1), (0, 0, 0, 0, future, tile - 1))
        first = future + self.right + 1 - (columns if self.causal else keys)
        return v_BYXUV.flip(2)[:, None], e_YXUK, first

    def project(self, x_BNC: Tensor, context_BMC: Tensor | None, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, N, H, K), k (B, M, U, K) and v (B, M, U, V), which is zero at padding."""
        check_tokens("x", x_BNC, self.dim, self.qkv.weight)
        if context_BMC is None:
            q, k, v = self.qkv(without_padding(self, x_BNC, keep)).split(self.depths, -1)
        else:
            self.require_cross()
            check_tokens("context", context_BMC, self.dim, self.qkv.weight)
            if context_BMC.shape[0] != x_BNC.shape[0]:
                raise ValueError(f"x has a batch of {x_BNC.shape[0]} and the context one of {context_BMC.shape[0]}")
            of_q, of_k, of_v = self.qkv.weight.split(self.depths)
            q = linear(x_BNC, of_q)
            k, v = (linear(without_padding(self, context_BMC, keep), weight) for weight in (of_k, of_v))
        self.check_lengths(q.shape[1], k.shape[1])
        q = normed(self.norm_q, q, keep if context_BMC is None else None)
        q, k, v = precise(q, k, normed(self.norm_v, v, keep))
        v = v if keep is None else v.masked_fill(~keep[:, :, None], 0)
        q, k, v = (t.unflatten(2, (parts, -1)) for t, parts in zip((q, k, v), self.parts, strict=True))
        return q, k, v

    def check_lengths(self, queries: int, keys: int) -> None:
        if self.grid and queries != self.grid[0] * self.grid[1]:
            raise ValueError(f"grid={self.grid} has {self.grid[0] * self.grid[1]} tokens, not {queries}")
        if self.max_length is not None and max(queries, keys) > self.max_length:
            raise ValueError(
                f"max_length={self.max_length} is too short for {max(queries, keys)} tokens; build with a larger one"
            )
        if self.causal and queries > keys:
            raise ValueError(
                f"a causal layer takes the queries as the last of the context's positions, so {queries} queries "
                f"need at least as many keys, not {keys}"
            )

    def require_cross(self) -> None:
        if self.axes == 2:
            raise ValueError(
                "LambdaLayer in two dimensions takes no context, since a grid says nothing of another sequence's "
                f"positions; these take one: {able(lambda card: card.cross)}"
            )

    def least(self, queries: int, keys: int) -> float:
        """q, k and v; the content lambda; each head's query through it; and the positions, in the cheaper order."""
        heads, depth, intra, wide = self.heads, self.depths[0] // self.heads, self.parts[1], self.dim // self.heads
        rows, columns = self.grid or (1, keys)
        across, down = (
            pairs(min(queries, n), n, causal=self.causal, window=min(n, reach + 1))
            for n, reach in ((columns, self.left), (rows, self.up))
        )
        met = across * (down if self.grid else 1)
        projected = queries * self.depths[0] + keys * sum(self.depths[1:])
        content = keys * intra * depth * wide + queries * heads * depth * wide
        return 2.0 * (self.dim * projected + content + met * intra * min(heads * (depth + wide), depth * wide))

    def extra_repr(self) -> str:
        used = {"max_length": self.max_length, "grid": self.grid, "window": self.window}
        extent = ", ".join(f"{name}={value}" for name, value in used.items() if value is not None)
        return f"dim={self.dim}, heads={self.heads}, {self.scope}, {extent}, causal={self.causal}"


def check_options(scope: Any, axes: Any, causal: Any, **extents: Any) -> None:
    """Each variant takes the options that say how far it sees, and no others."""
    if scope not in get_args(Scope):
        raise ValueError(f"scope is one of {', '.join(get_args(Scope))}, not {scope!r}")
    if axes not in (1, 2):
        raise ValueError(f"axes is 1 or 2, not {axes!r}")
    require_bool(causal=causal)
    if causal and axes == 2:
        raise ValueError(
            "a grid has no order, so LambdaLayer in two dimensions cannot be causal=True; "
            f"these can: {able(lambda card: card.causal != 'no')}"
        )
    name = f"lambda_layer:{scope}{'2d' if axes == 2 else ''}"
    needed = {"grid"} if axes == 2 else {"max_length"} if scope == "global" else set()
    for option, value in extents.items():
        if value is None and option in needed:
            raise ValueError(f"{name} needs {option}=, " + {"grid": "(rows, columns)"}.get(option, "the most tokens"))
        if value is not None and option not in needed | ({"window"} if scope == "local" else set()):
            raise TypeError(f"{name} has no use for {option}={value!r}")
    grid, window = extents["grid"], extents["window"]
    if grid is not None:
        if not isinstance(grid, tuple | list) or len(grid) != 2:
            raise TypeError(f"grid is (rows, columns), not {grid!r}")
        require_positive(**{"grid's rows": grid[0], "grid's columns": grid[1]})
    if extents["max_length"] is not None:
        require_positive(max_length=extents["max_length"])
    if window is not None:
        require_positive(window=window)
        if window % 2 == 0:
            raise ValueError(f"window={window} has no middle; take an odd one, such as {window + 1}")


def normed(norm: nn.BatchNorm1d, x_BNC: Tensor, keep: Tensor | None) -> Tensor:
    """Batch norm over the real tokens."""
    if keep is None or not norm.training:
        rows = x_BNC.flatten(0, 1).contiguous()  # of a slice, torch's norm is several times slower
        return norm(rows).view(x_BNC.shape)
    real = norm(x_BNC[keep])
    return real.new_zeros(x_BNC.shape).index_put((keep,), real)


def past_contents(q_BNHK: Tensor, k_BMUK: Tensor, v_BMUV: Tensor, keep: Tensor | None) -> Tensor:
    """(L^c_n)^T q_n with kbar normalised over the keys up to n: sums of exp(k_m - c_n) v_m over sums of exp(k_m - c_n).

    c is the running maximum of each key channel, and cancels. Blocks of rows see one another through the sums S and z.
    """
    N, M = q_BNHK.shape[1], k_BMUK.shape[1]
    missing, nothing = -M % TILE, finfo(k_BMUK.dtype).min
    q_BJRHK = pad(q_BNHK, (0, 0, 0, 0, M - N, missing)).unflatten(1, (-1, TILE))
    k_BJRUK, v_BJRUV = (pad(t, (0, 0, 0, 0, 0, missing)).unflatten(1, (-1, TILE)) for t in (k_BMUK, v_BMUV))
    real_BM = k_BMUK.new_ones(k_BMUK.shape[:2], dtype=torch.bool) if keep is None else keep
    real_BJR = pad(real_BM, (0, missing)).unflatten(1, (-1, TILE))
    seen_BJRUK = k_BJRUK.detach().masked_fill(~real_BJR[..., None, None], nothing)
    c_BJRUK = seen_BJRUK.flatten(1, 2).cummax(1).values.view_as(k_BJRUK)
    before = torch.cat([torch.full_like(c_BJRUK[:, :1, -1:], nothing), c_BJRUK[:, :-1, -1:]], 1)
    faded_BJRUK = (before - c_BJRUK).exp()  # what became of a one in the sums that came into the block

    sees_BJRR11 = (real_BJR[:, :, None] & real_BJR.new_ones(TILE, TILE).tril())[..., None, None]
    E_BJRRUK = (k_BJRUK[:, :, None] - c_BJRUK[:, :, :, None]).masked_fill(~sees_BJRR11, -torch.inf).exp()
    z_BJRUK = E_BJRRUK.sum(3)
    S_BJUKV = torch.einsum("bjmuk,bjmuv->bjukv", E_BJRRUK[:, :, -1], v_BJRUV)  # of each block alone, as seen at its end
    z_past, S_past = [torch.zeros_like(z_BJRUK[:, 0, 0])], [torch.zeros_like(S_BJUKV[:, 0])]
    for z, S, faded in zip(
        z_BJRUK[:, :, -1].unbind(1), S_BJUKV.unbind(1), faded_BJRUK[:, :, -1].unbind(1), strict=True
    ):
        z_past.append(z_past[-1] * faded + z)
        S_past.append(S_past[-1] * faded[..., None] + S)
    z_BJRUK = z_BJRUK + faded_BJRUK * torch.stack(z_past[:-1], 1)[:, :, None]

    a_BJRHUK = q_BJRHK[:, :, :, :, None] / z_BJRUK.masked_fill(z_BJRUK == 0, 1)[:, :, :, None]
    weight_BJRHRU = torch.einsum("bjnhuk,bjnmuk->bjnhmu", a_BJRHUK, E_BJRRUK)
    y_BJRHV = torch.einsum("bjnhmu,bjmuv->bjnhv", weight_BJRHRU, v_BJRUV)
    past = torch.stack(S_past[:-1], 1)
    y_BJRHV = y_BJRHV + torch.einsum("bjnhuk,bjukv->bjnhv", a_BJRHUK * faded_BJRUK[:, :, :, None], past)
    return y_BJRHV.flatten(1, 2)[:, M - N : M]


class Plan(NamedTuple):
    """Which keys a tile of queries sees."""

    high: int  # its rows
    up: int  # rows above and below those
    first: int | None  # place in e of the first query and key, where all tiles see whole rows
    ordered: int | None  # queries, which are the last of the keys' positions; None without order


class Block(NamedTuple):
    """Queries and keys that meet in one product."""

    items: slice
    own: slice  # rows of queries
    tiles: slice
    rows: slice  # of keys
    columns: slice
    taps: slice  # rows of e
    place: int | None  # in its columns

    def queries(self, x_BYTPHD: Tensor) -> Tensor:
        """(P, H G, D)"""
        return x_BYTPHD[self.items, self.own, self.tiles].permute(1, 3, 4, 0, 2, 5).flatten(2, 4).flatten(0, 1)

    def outputs(self, y_BYTPHD: Tensor) -> Tensor:
        """(items, tiles, rows, P, H, D)"""
        return y_BYTPHD[self.items, self.own, self.tiles].transpose(1, 2)

    def keys(self, v_BTYSUV: Tensor) -> Tensor:
        return v_BTYSUV[self.items, :, self.rows, self.columns]

    def offsets(self, e: Tensor, tile: int) -> Tensor:
        """(P, rows, S, U, K), or the part of e that holds them along its diagonals."""
        if self.place is None:
            return e[: (self.own.stop - self.own.start) * tile, self.taps]
        return e[self.taps, self.place : self.place + tile - 1 + self.columns.stop - self.columns.start]


def blocks(q_BYTPHK: Tensor, v_BTYSUV: Tensor, plan: Plan) -> Iterator[Block]:
    B, Y, T, P = q_BYTPHK.shape[:4]
    rows, columns = v_BTYSUV.shape[2:4]
    step = max(1, TILES_AT_ONCE // T) if plan.first is None else B
    for start in range(0, B, step):
        for row in range(0, Y, plan.high):
            own, items = slice(row, min(Y, row + plan.high)), slice(start, start + step)
            seen = slice(max(0, row - plan.up), min(rows, own.stop + plan.up))
            taps = slice(seen.start - row + plan.up, seen.stop - row + plan.up)
            if plan.first is None:
                yield Block(items, own, slice(0, T), seen, slice(0, columns), taps, None)
                continue
            for tile in range(T):
                future = 0 if plan.ordered is None else max(0, plan.ordered - (tile + 1) * P)
                place = plan.first + tile * P + future
                yield Block(items, own, slice(tile, tile + 1), seen, slice(future, columns), taps, place)


def of_tile(e: Tensor, tile: int, block: Block) -> Tensor:
    """e between the queries of a tile and its keys, (P, R, K)."""
    e = block.offsets(e, tile)
    if block.place is not None:
        e = e.unfold(1, e.shape[1] - tile + 1, 1).permute(1, 0, 4, 2, 3)
    return e.flatten(1, 3)


def add_to_offsets(de: Tensor, de_PRK: Tensor, tile: int, block: Block) -> None:
    """What `of_tile` gave comes back, along the diagonals p + s where it was taken from there."""
    part = block.offsets(de, tile)
    if block.place is None:
        part += de_PRK.view(part.shape)
        return
    rows, columns, U, K = part.shape
    seen = columns - tile + 1
    skewed = de_PRK.new_zeros(tile, rows, columns + 1, U, K)
    skewed[:, :, :seen] = de_PRK.view(tile, rows, seen, U, K)
    strides = skewed.stride()  # a step in p goes one column back, into zeros
    part += skewed.as_strided((tile, *part.shape), (strides[0] - strides[2], *strides[1:])).sum(0)


def by_tiles(x_PQD: Tensor, heads: int) -> Tensor:
    """(P, H G, D) -> (G, P H, D)"""
    return x_PQD.view(x_PQD.shape[0] * heads, -1, x_PQD.shape[2]).transpose(0, 1)


class Lambdas(Function):
    """y = (L^c + L^p)^T q with L^p applied as sum_m (q.e_m) v_m, block by block."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, content: Tensor | None, v: Tensor, e: Tensor, plan: Plan) -> Tensor:
        ctx.save_for_backward(q, content, v, e)
        ctx.plan = plan
        with without_autocast(q):
            if content is None:
                y = q.new_zeros(*q.shape[:5], v.shape[5])
            else:
                y = torch.bmm(q.flatten(1, 4), content).view(*q.shape[:5], v.shape[5])
            for block in blocks(q, v, plan):
                weight_PQR = torch.bmm(block.queries(q), of_tile(e, q.shape[3], block).mT)
                v_GRV = block.keys(v).flatten(0, 1).flatten(1, 3)
                out = block.outputs(y)
                out += torch.bmm(by_tiles(weight_PQR, q.shape[4]), v_GRV).view(out.shape)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, content, v, e = ctx.saved_tensors
        H, dcontent = q.shape[4], None
        dq, dv, de = (torch.zeros_like(t) if ctx.needs_input_grad[n] else None for n, t in ((0, q), (2, v), (3, e)))
        with without_autocast(q):
            if content is not None:
                dy_BIV = dy.flatten(1, 4)
                if dq is not None:
                    dq = torch.bmm(dy_BIV, content.mT).view(q.shape)
                if ctx.needs_input_grad[1]:
                    dcontent = torch.bmm(q.flatten(1, 4).mT, dy_BIV)
            for block in blocks(q, v, ctx.plan):
                dy_GIV = block.outputs(dy).flatten(2, 4).flatten(0, 1)
                q_PQK, e_PRK = block.queries(q), of_tile(e, q.shape[3], block)
                if dv is not None:
                    part = block.keys(dv)
                    part += torch.bmm(by_tiles(torch.bmm(q_PQK, e_PRK.mT), H).mT, dy_GIV).view(part.shape)
                if dq is None and de is None:
                    continue
                dweight_GPHR = torch.bmm(dy_GIV, block.keys(v).flatten(0, 1).flatten(1, 3).mT).unflatten(1, (-1, H))
                dweight_PQR = dweight_GPHR.permute(1, 2, 0, 3).flatten(1, 2)
                del dweight_GPHR  # the largest of a block
                if dq is not None:
                    part = block.outputs(dq)
                    dq_YPHBTK = torch.bmm(dweight_PQR, e_PRK).view(*part.shape[2:5], *part.shape[:2], part.shape[5])
                    part += dq_YPHBTK.permute(3, 4, 0, 1, 2, 5)
                if de is not None:
                    add_to_offsets(de, torch.bmm(dweight_PQR.mT, q_PQK), q.shape[3], block)
                del dweight_PQR
        return dq, dcontent, dv, de, None
