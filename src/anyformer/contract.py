"""The slots of a model and what fills them.

A `Mixer` lets the tokens of a sequence exchange information. `Attention` is the core of a mixer that
has queries, keys and values inside; `AttentionLayer` puts the projections around any core.

Shapes   B batch, N queries, M keys, C model dim, H heads, G key heads, D key dim, E value dim
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, final

import torch
from torch import Tensor, nn

from anyformer.card import Card, able


class Mixer(nn.Module, ABC):
    """`layer(x)`, `layer(x, context, keep=keep)`; `keep` is True at real tokens."""

    card: Card
    dim: int
    causal: bool

    @abstractmethod
    def forward(self, x_BNC: Tensor, context_BMC: Tensor | None = None, *, keep: Tensor | None = None) -> Tensor:
        """The fast form."""

    @abstractmethod
    def formula(self, x_BNC: Tensor, context_BMC: Tensor | None = None, *, keep: Tensor | None = None) -> Tensor:
        """The paper's equation on the same parameters, as slow as it likes: the oracle."""

    def least(self, queries: int, keys: int) -> float:
        """The fewest operations that the outputs of one item need, by formula; 0 where nobody has worked it out."""
        return 0.0

    def start(self, batch: int, *, context: Tensor | None = None, keep: Tensor | None = None) -> Any:
        """The state before the first token."""
        raise ValueError(
            f"{type(self).__name__} does not stream; these do: {able(lambda card: card.stream == 'exact')}"
        )

    def stream(self, x_BNC: Tensor, state: Any, *, keep: Tensor | None = None) -> tuple[Tensor, Any]:
        """Some more tokens and the state after the earlier ones -> their outputs and the next state."""
        raise ValueError(
            f"{type(self).__name__} does not stream; these do: {able(lambda card: card.stream == 'exact')}"
        )


class Held(NamedTuple):
    """A context prepared for cross-attention: its keys and values."""

    k_BHMD: Tensor
    v_BHME: Tensor
    keep_BM: Tensor | None


SPARE = 16  # slots of a new cache beyond twice what it holds


class Cache(NamedTuple):
    """The keys and values seen so far, in the front part of a buffer that newer states share.

    Slot 0 of the buffer is position `first`; this state ends before `position`. `filled_B` lives in the
    buffer too: whoever finds it beyond its own position is not the newest state and copies.
    """

    k_BGSD: Tensor
    v_BGSE: Tensor
    keep_BS: Tensor | None
    filled_B: Tensor
    first: int
    position: int


class Attention(nn.Module, ABC):
    """The core of a mixer: queries, keys and values in, mixed values out."""

    card: ClassVar[Card]
    horizon: int | None = None  # how many past keys a query may still see when causal; None is all of them

    def __init__(self, *, heads: int, head_dim: int, causal: bool = False) -> None:
        super().__init__()
        require_positive(heads=heads, head_dim=head_dim)
        require_bool(causal=causal)
        if causal and self.card.causal == "no":
            raise ValueError(
                f"{type(self).__name__} cannot be causal=True; these can: {able(lambda card: card.causal != 'no')}"
            )
        self.heads, self.head_dim, self.causal = heads, head_dim, causal

    @abstractmethod
    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        """The fast form. When causal, the queries are the last N of the M positions."""

    @abstractmethod
    def formula(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        """The paper's equation, literally."""

    def checked(
        self, q_BHND: Tensor, k_BGMD: Tensor, v_BGME: Tensor, keep_BM: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v fit to compute with: shapes agree, padded keys are zero, each head has its keys."""
        check_qkv(self, q_BHND, k_BGMD, v_BGME)
        if keep_BM is not None:
            require_padding(self)
            check_keep(keep_BM, k_BGMD.shape[0], k_BGMD.shape[2], k_BGMD.device)
            padded = ~keep_BM[:, None, :, None]
            k_BGMD, v_BGME = k_BGMD.masked_fill(padded, 0), v_BGME.masked_fill(padded, 0)
        share = self.heads // k_BGMD.shape[1]
        if share > 1:
            k_BGMD, v_BGME = k_BGMD.repeat_interleave(share, 1), v_BGME.repeat_interleave(share, 1)
        return q_BHND, k_BGMD, v_BGME

    def least(self, queries: int, keys: int) -> float:
        """The fewest operations that the outputs of one item need, by formula; 0 where nobody has worked it out."""
        return 0.0

    def projected(self, keys: int) -> int:
        """How many keys and values a layer has to project at least for so many tokens."""
        return keys

    def hold(self, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Any:
        """A context, prepared once for any number of queries."""
        return Held(k_BHMD, v_BHME, keep_BM)

    def read(self, q_BHND: Tensor, held: Any) -> Tensor:
        """What the queries see in a context that `hold` prepared."""
        check_query(self, q_BHND)
        return self.attend(q_BHND, held.k_BHMD, held.v_BHME, held.keep_BM)

    def premix(self, context_BMC: Tensor, k: Callable[[Tensor], Tensor], v: Callable[[Tensor], Tensor]) -> Any:
        """What `hold` would give of k(context) and v(context), for less work; None where there is no such way.

        k and v are linear along the last axis and padded tokens are zero: a core that begins by mixing the keys of all
        heads by one matrix along the length can mix the tokens instead, and project what is left.
        """
        return None

    def begin(self, batch: int, like: Tensor) -> Any:
        """The state before the first token; `like` gives dtype and device."""
        self.require_streaming()
        require_positive(batch=batch)
        empty = like.new_zeros(batch, self.heads, 0, self.head_dim)
        return Cache(empty, empty, None, torch.zeros(batch, dtype=torch.int64), 0, 0)

    def extend(
        self, q_BHND: Tensor, k_BGND: Tensor, v_BGNE: Tensor, state: Any, keep_BN: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Outputs of some more tokens, and the state after them: attention over a cache of the keys."""
        self.check_chunk(q_BHND, k_BGND, v_BGNE, state, Cache, keep_BN)
        begins = state.position if self.horizon is None else max(0, state.position - self.horizon)
        past = state.position - (0 if self.horizon is None else begins)
        learning = torch.is_grad_enabled() and any(t.requires_grad for t in (q_BHND, k_BGND, v_BGNE, *state[:2]))
        state = append(state, k_BGND, v_BGNE, keep_BN, past, learning)
        seen = slice(state.position - k_BGND.shape[2] - past - state.first, state.position - state.first)
        keep_BM = None if state.keep_BS is None else state.keep_BS[:, seen]
        y_BHNE = self.attend(q_BHND, state.k_BGSD[:, :, seen], state.v_BGSE[:, :, seen], keep_BM)
        if self.horizon is not None and not learning and state.position - state.first > 2 * self.horizon + SPARE:
            state = cut(state, self.horizon)  # a long chunk came in, and most of it will never be seen again
        return y_BHNE, state

    def check_chunk(
        self,
        q_BHND: Tensor,
        k_BGND: Tensor,
        v_BGNE: Tensor,
        state: Any,
        kind: type[tuple[Any, ...]],
        keep_BN: Tensor | None,
    ) -> None:
        """What `extend` was given fits together and fits the state, whose first tensor has the batch's size."""
        self.require_streaming()
        check_qkv(self, q_BHND, k_BGND, v_BGNE)
        if not isinstance(state, kind):
            raise TypeError(f"{type(self).__name__} streams with the state that its own start or begin returns")
        if state[0].shape[0] != q_BHND.shape[0]:
            raise ValueError(f"the state is for a batch of {state[0].shape[0]}, not {q_BHND.shape[0]}")
        if state[0].device != q_BHND.device:
            raise ValueError(f"the state is on {state[0].device} and the chunk on {q_BHND.device}; move one with .to()")
        if q_BHND.shape[2] != k_BGND.shape[2]:
            raise ValueError(f"a chunk has as many queries as keys, not {q_BHND.shape[2]} and {k_BGND.shape[2]}")
        if keep_BN is not None:
            check_keep(keep_BN, q_BHND.shape[0], k_BGND.shape[2], q_BHND.device)

    def require_streaming(self) -> None:
        if self.card.stream == "none":
            raise ValueError(
                f"{type(self).__name__} does not stream; these do: {able(lambda card: card.stream == 'exact')}"
            )
        if not self.causal:
            raise ValueError(
                f"{type(self).__name__} streams only when causal: build it with causal=True, "
                "or give start() a context for cross-attention"
            )


def cut(state: Cache, past: int) -> Cache:
    """The cache with nothing but the last `past` keys, in memory of its own."""
    held = slice(state.position - past - state.first, state.position - state.first)
    return Cache(
        state.k_BGSD[:, :, held].clone(),
        state.v_BGSE[:, :, held].clone(),
        None if state.keep_BS is None else state.keep_BS[:, held].clone(),
        state.filled_B.clone(),
        state.position - past,
        state.position,
    )


def append(state: Cache, k_BGND: Tensor, v_BGNE: Tensor, keep_BN: Tensor | None, past: int, learning: bool) -> Cache:
    """The cache with some more keys, of which the last `past` earlier ones are still needed."""
    if state.position:
        for name, old, fresh in (("k", state.k_BGSD, k_BGND), ("v", state.v_BGSE, v_BGNE)):
            if old.shape[1] != fresh.shape[1] or old.shape[3] != fresh.shape[3]:
                raise ValueError(
                    f"{name} has {fresh.shape[1]} heads of {fresh.shape[3]}, and the tokens before this chunk had "
                    f"{old.shape[1]} of {old.shape[3]}; stream all of a sequence alike"
                )
            check_same("the state", old, name, fresh)
    batch, _, new, _ = k_BGND.shape
    taken = state.position - state.first
    if keep_BN is not None or state.keep_BS is not None:
        kept = state.keep_BS if state.keep_BS is not None else k_BGND.new_ones(batch, state.k_BGSD.shape[2]).bool()
        keep_BN = k_BGND.new_ones(batch, new).bool() if keep_BN is None else keep_BN
        state = state._replace(keep_BS=kept)
    fits = taken + new <= state.k_BGSD.shape[2]
    newest = bool((state.filled_B == state.position).all())
    frozen = state.k_BGSD.is_inference() and not torch.is_inference_mode_enabled()
    after = state.position + new
    if fits and newest and not learning and not frozen:
        state.k_BGSD[:, :, taken : taken + new] = k_BGND
        state.v_BGSE[:, :, taken : taken + new] = v_BGNE
        if keep_BN is not None and state.keep_BS is not None:
            state.keep_BS[:, taken : taken + new] = keep_BN
        state.filled_B.fill_(after)
        return state._replace(position=after)

    def grown(old: Tensor, fresh: Tensor, axis: int) -> Tensor:
        if old.shape[axis] == 0:
            old = fresh.narrow(axis, 0, 0)
        parts = [old.narrow(axis, taken - past, past), fresh]
        if not learning:  # as much room again, so that the copies of n tokens cost O(n) together
            room = list(fresh.shape)
            room[axis] = past + new + SPARE
            parts.append(fresh.new_zeros(room))
        return torch.cat(parts, axis)

    return Cache(
        grown(state.k_BGSD, k_BGND, 2),
        grown(state.v_BGSE, v_BGNE, 2),
        None if keep_BN is None or state.keep_BS is None else grown(state.keep_BS, keep_BN, 1),
        torch.full((batch,), after, dtype=torch.int64),
        state.position - past,
        after,
    )


class Context(NamedTuple):
    """A layer's state for cross-attention: the prepared context, and how many queries have passed."""

    held: Any
    position: int


@final
class AttentionLayer(Mixer):
    """The projections around a core: q, k, v from the tokens (k and v from the context, if one is given)."""

    def __init__(self, core: Attention, *, dim: int, key_heads: int | None = None, bias: bool = False) -> None:
        super().__init__()
        require_positive(dim=dim)
        key_heads = core.heads if key_heads is None else key_heads
        require_positive(key_heads=key_heads)
        require_bool(bias=bias)
        if core.heads % key_heads:
            raise ValueError(f"key_heads={key_heads} does not divide heads={core.heads}; take a divisor")
        self.core, self.dim, self.causal, self.key_heads = core, dim, core.causal, key_heads
        self.card = core.card
        self.q = nn.Linear(dim, core.heads * core.head_dim, bias=bias)
        self.k = nn.Linear(dim, key_heads * core.head_dim, bias=bias)
        self.v = nn.Linear(dim, key_heads * core.head_dim, bias=bias)
        self.out = nn.Linear(core.heads * core.head_dim, dim, bias=bias)

    def forward(self, x_BNC: Tensor, context_BMC: Tensor | None = None, *, keep: Tensor | None = None) -> Tensor:
        x_BNC, context_BMC = self.tokens(x_BNC, context_BMC, keep)
        held = self.premix(context_BMC)
        if held is not None:
            return self.merge(self.core.read(self.split(self.q(x_BNC)), held))
        return self.merge(self.core.attend(*self.heads(x_BNC, context_BMC), keep))  # q, k and v are gone before `out`

    def formula(self, x_BNC: Tensor, context_BMC: Tensor | None = None, *, keep: Tensor | None = None) -> Tensor:
        q, k, v = self.project(x_BNC, context_BMC, keep)
        return self.merge(self.core.formula(q, k, v, keep))

    def start(self, batch: int, *, context: Tensor | None = None, keep: Tensor | None = None) -> Any:
        require_positive(batch=batch)
        if context is None:
            if keep is not None:
                raise ValueError("start takes keep only with a context; give stream() the chunk's keep")
            return self.core.begin(batch, self.q.weight)
        self.require_cross()
        if self.causal:
            raise ValueError("a prepared context has no order with the chunks to come: build with causal=False")
        check_tokens("context", context, self.dim, self.q.weight)
        if context.shape[0] != batch:
            raise ValueError(f"the context has a batch of {context.shape[0]}, and start was asked for {batch}")
        context = without_padding(self, context, keep)
        held = self.premix(context)
        if held is None:
            held = self.core.hold(self.split(self.k(context)), self.split(self.v(context)), keep)
        return Context(held, 0)

    def stream(self, x_BNC: Tensor, state: Any, *, keep: Tensor | None = None) -> tuple[Tensor, Any]:
        if not isinstance(state, Context):
            q, k, v = self.project(x_BNC, None, keep)
            y, state = self.core.extend(q, k, v, state, keep)
            return self.merge(y), state
        check_tokens("x", x_BNC, self.dim, self.q.weight)
        if keep is not None:
            raise ValueError("keep marks keys, and those of a prepared context were given to start()")
        if state.held[0].shape[0] != x_BNC.shape[0]:
            raise ValueError(f"the state is for a batch of {state.held[0].shape[0]}, not {x_BNC.shape[0]}")
        y = self.core.read(self.split(self.q(x_BNC)), state.held)
        return self.merge(y), Context(state.held, state.position + x_BNC.shape[1])

    def least(self, queries: int, keys: int) -> float:
        """Those of the projections and of the core."""
        rows = queries * self.core.heads + self.core.projected(keys) * self.key_heads
        return 4.0 * self.dim * self.core.head_dim * rows + self.core.least(queries, keys)

    def project(self, x_BNC: Tensor, context_BMC: Tensor | None, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        return self.heads(*self.tokens(x_BNC, context_BMC, keep))

    def heads(self, x_BNC: Tensor, context_BMC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.split(self.q(x_BNC)), self.split(self.k(context_BMC)), self.split(self.v(context_BMC))

    def tokens(self, x_BNC: Tensor, context_BMC: Tensor | None, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the queries are made of, and what the keys and values are: zero where padded."""
        check_tokens("x", x_BNC, self.dim, self.q.weight)
        if context_BMC is None:
            x_BNC = context_BMC = without_padding(self, x_BNC, keep)
        else:
            self.require_cross()
            check_tokens("context", context_BMC, self.dim, self.q.weight)
            context_BMC = without_padding(self, context_BMC, keep)
        return x_BNC, context_BMC

    def premix(self, context_BMC: Tensor) -> Any:
        """A context held without all its keys and values, if the core knows how; a bias would have to be mixed too."""
        if any(getattr(part, "bias", None) is not None for part in (self.k, self.v)):
            return None
        return self.core.premix(context_BMC, lambda x: self.split(self.k(x)), lambda x: self.split(self.v(x)))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.core.head_dim)).transpose(1, 2)

    def merge(self, y_BHNE: Tensor) -> Tensor:
        return self.out(y_BHNE.transpose(1, 2).flatten(2))

    def require_cross(self) -> None:
        if not self.card.cross:
            raise ValueError(
                f"{type(self.core).__name__} has no cross-attention, so it takes no context; "
                f"these have: {able(lambda card: card.cross)}"
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.core.heads}, head_dim={self.core.head_dim}, causal={self.causal}"


class Mixing(Protocol):
    """What the laws need of anybody's module."""

    def __call__(self, x: Tensor, context: Tensor | None = None, *, keep: Tensor | None = None) -> Tensor: ...


def without_padding(layer: Mixer, x_BNC: Tensor, keep: Tensor | None) -> Tensor:
    """The tokens, with zeros where padding stood: what stands there must not matter, NaN included."""
    if keep is None:
        return x_BNC
    require_padding(layer)
    check_keep(keep, x_BNC.shape[0], x_BNC.shape[1], x_BNC.device)
    return x_BNC.masked_fill(~keep[:, :, None], 0)


def require_padding(mixer: Mixer | Attention) -> None:
    if not mixer.card.padding:
        raise ValueError(f"this mechanism takes no keep mask; these do: {able(lambda card: card.padding)}")


def require_positive(**options: Any) -> None:
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is a whole number, not {value!r}")
        if not 1 <= value < 2**63:
            raise ValueError(f"{name} must be {'at least 1' if value < 1 else 'below 2**63'}, not {value}")


def require_bool(**options: Any) -> None:
    for name, value in options.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} is True or False, not {value!r}")


def check_tokens(name: str, x: Any, dim: int, weight: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor of shape (batch, length, {dim}), not {type(x).__name__}")
    if x.dim() != 3 or x.shape[2] != dim:
        raise ValueError(f"{name} must have shape (batch, length, {dim}), not {tuple(x.shape)}")
    check_filled(name, x, x.shape[1])
    check_same(name, x, "the layer", weight)


def check_qkv(core: Attention, q: Any, k: Any, v: Any) -> None:
    check_query(core, q)
    for name, t in (("k", k), ("v", v)):
        check_heads(name, t)
        check_same(name, t, "q", q)
    if k.shape[3] != core.head_dim:
        raise ValueError(f"k must have heads of {core.head_dim} like q, not shape {tuple(k.shape)}")
    if k.shape[:3] != v.shape[:3] or v.shape[3] == 0:
        raise ValueError(f"k and v must agree in batch, heads and length, not {tuple(k.shape)} and {tuple(v.shape)}")
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"q has a batch of {q.shape[0]} and k one of {k.shape[0]}; make them equal")
    if not k.shape[1] or core.heads % k.shape[1]:
        raise ValueError(f"k has {k.shape[1]} heads, which do not divide q's {core.heads}")
    queries, keys = q.shape[2], k.shape[2]
    if core.causal and queries > keys:
        raise ValueError(
            f"causal attention takes the queries as the last of the keys' positions, so {queries} queries "
            f"need at least as many keys, not {keys}"
        )
    if not core.card.cross and not core.causal and queries != keys:
        raise ValueError(
            f"{type(core).__name__} has no cross-attention, so {queries} queries need {queries} keys, not {keys}; "
            f"these have it: {able(lambda card: card.cross)}"
        )


def check_query(core: Attention, q: Any) -> None:
    check_heads("q", q)
    if q.shape[1] != core.heads or q.shape[3] != core.head_dim:
        raise ValueError(f"q must have {core.heads} heads of {core.head_dim}, not shape {tuple(q.shape)}")


def check_heads(name: str, t: Any) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a tensor of shape (batch, heads, length, dim), not {type(t).__name__}")
    if t.dim() != 4:
        raise ValueError(f"{name} must have shape (batch, heads, length, dim), not {tuple(t.shape)}")
    check_filled(name, t, t.shape[2])


def check_filled(name: str, t: Tensor, length: int) -> None:
    if not t.is_floating_point() or t.element_size() < 2:
        raise ValueError(f"{name} must hold floating-point numbers of 16 bits or more, not {t.dtype}")
    if t.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, not {t.layout}; convert it with .to_dense()")
    if t.shape[0] == 0 or length == 0:
        raise ValueError(f"{name} is empty (shape {tuple(t.shape)}); give it at least one item and one token")


def check_same(name: str, t: Tensor, other_name: str, other: Tensor) -> None:
    if t.device != other.device:
        raise ValueError(f"{name} is on {t.device} and {other_name} on {other.device}; move one with .to()")
    if t.dtype != other.dtype and not (autocast(t.device.type) and torch.float64 not in (t.dtype, other.dtype)):
        raise ValueError(f"{name} has dtype {t.dtype} and {other_name} {other.dtype}; convert one with .to()")


def autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def check_keep(keep: Any, batch: int, length: int, device: torch.device) -> None:
    if not isinstance(keep, Tensor):
        raise TypeError(f"keep must be a bool tensor of shape ({batch}, {length}), not {type(keep).__name__}")
    if keep.layout != torch.strided:
        raise ValueError(f"keep must be a dense tensor, not {keep.layout}; convert it with .to_dense()")
    if keep.dtype != torch.bool:
        raise ValueError(f"keep must be bool with True at real tokens, not {keep.dtype}; compare it, as in mask == 1")
    if keep.shape != (batch, length):
        raise ValueError(f"keep must have shape ({batch}, {length}), one entry per key, not {tuple(keep.shape)}")
    if keep.device != device:
        raise ValueError(f"keep is on {keep.device} and the tokens on {device}; move it with .to()")
