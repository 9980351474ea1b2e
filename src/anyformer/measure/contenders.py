"""Who is measured: a mechanism at one level, in one order and mode, at one length, ready to be called."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from math import isqrt
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from anyformer.card import Card, able, find
from anyformer.catalog import build, core, mechanism
from anyformer.contract import Cache
from anyformer.measure.floor import Limits, moved_bytes
from anyformer.measure.memory import peak_bytes
from anyformer.models.transformer import Decoder, Encoder

Level = Literal["op", "layer", "model"]
Mode = Literal["forward", "train", "decode"]
LEVELS, MODES = get_args(Level), get_args(Mode)
LAYERS = 2  # of a model; more would take longer and change no ratio
COMPILED, UNCACHED, AGAIN = ", compiled", ", nothing cached", ", again"  # after a mechanism's name


class Sizes(NamedTuple):
    """What all have in common."""

    batch: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: str
    options: Mapping[str, Mapping[str, Any]]  # of single mechanisms, by name


class Contender(NamedTuple):
    run: Callable[[], object]
    before: Callable[[], object] | None  # brings it back to where it starts; not timed
    operations: float  # the fewest that a call needs; 0 where nobody has worked it out
    moved: int  # bytes of inputs, outputs and weights, once
    held: Callable[[], int]  # bytes, as memory is measured in this mode


def facts(name: str) -> Card:
    entry, variant = find(spec(name))
    return entry.card.of(variant)


def spec(name: str) -> str:
    """The mechanism, without what stands after its name."""
    return name.partition(", ")[0]


def refusal(name: str, level: str, mode: str, causal: bool) -> str:
    """Why there is no such contender, or nothing."""
    card = facts(name)
    if level == "op" and card.slot != "attention":
        return "it has no queries, keys and values: measure it with --level layer"
    if causal and card.causal == "no":
        return f"it cannot be causal; these can: {able(lambda other: other.causal != 'no')}"
    if not causal and card.causal == "only":
        return "it is only causal"
    if mode == "decode" and not name.endswith(UNCACHED) and card.stream == "none":
        return f"it does not stream; these do: {able(lambda other: other.stream != 'none')}"
    if name.endswith(COMPILED) and not card.compiles:
        return f"its card does not claim torch.compile; these do: {able(lambda other: other.compiles)}"
    return ""


def made(name: str, level: str, causal: bool, length: int, sizes: Sizes) -> nn.Module:
    """The module with its own defaults and the user's options, and with room for the length where it needs to know."""
    known, card = signature(mechanism(spec(name))).parameters, facts(name)
    entry, variant = find(spec(name))
    chosen = entry.card.variants.get(variant or "", {})
    given = {**sizes.options.get(entry.name, {}), **sizes.options.get(spec(name), {})}
    around = {"dim", "heads", "head_dim", "causal", *chosen, *given}
    needed = {n for n, parameter in known.items() if parameter.default is parameter.empty} - around
    options = {n: value for n, value in card.tiny.items() if n in needed} | given
    if "max_length" in card.tiny and "max_length" not in given:
        options["max_length"] = length
    if "grid" in card.tiny and "grid" not in given:
        options["grid"] = (height(length), length // height(length))
    if level == "op":
        return core(spec(name), heads=sizes.heads, head_dim=sizes.head_dim, causal=causal, **options)
    if "heads" in known:
        options.setdefault("heads", sizes.heads)
    if card.slot == "attention":
        options["head_dim"] = sizes.head_dim
    dim = sizes.heads * sizes.head_dim
    if level == "layer":
        return build(spec(name), dim=dim, causal=causal, **options)
    return (Decoder if causal else Encoder)(partial(build, spec(name), **options), dim=dim, layers=LAYERS)


def height(length: int) -> int:
    """Of the grid nearest to a square that holds so many tokens."""
    return next(h for h in range(isqrt(length), 0, -1) if length % h == 0)


def inputs(level: str, length: int, sizes: Sizes) -> tuple[Tensor, ...]:
    """q, k and v as projections give them, heads beside one another in memory; or the tokens of a layer."""
    drawn = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(sizes.batch, length, *shape, generator=drawn).to(sizes.device, sizes.dtype)

    if level != "op":
        return (normal(sizes.heads * sizes.head_dim),)
    return tuple(normal(sizes.heads, sizes.head_dim).transpose(1, 2) for _ in range(3))


def contender(name: str, level: str, mode: str, causal: bool, length: int, sizes: Sizes) -> Contender:
    refused = refusal(name, level, mode, causal)
    if refused:
        raise ValueError(f"{name}: {refused}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module: Any = made(name, level, causal, length, sizes).to(sizes.device, sizes.dtype).train(mode == "train")
    given = inputs(level, length, sizes)
    if mode == "decode" and not name.endswith(UNCACHED):
        return decoding(module, level, given)
    forward: Callable[..., Tensor] = module.attend if level == "op" else module
    if name.endswith(COMPILED):
        forward = torch.compile(forward, dynamic=False)
    operations = sizes.batch * least(module, length)
    moved = moved_bytes(*given, given[-1], *module.parameters())
    if mode != "train":

        @torch.no_grad()
        def run() -> Tensor:
            return forward(*given)

        return Contender(run, None, operations, moved, lambda: peak_bytes(run))
    given = tuple(t.detach().requires_grad_() for t in given)
    wanted = [*given, *module.parameters()]
    upstream = torch.randn(given[-1].shape, generator=torch.Generator().manual_seed(1)).to(given[-1])

    def train() -> object:
        return torch.autograd.grad(forward(*given), wanted, upstream, allow_unused=True)

    # a backward pass has two products for each of the forward pass, and each tensor has a gradient
    return Contender(train, None, 3 * operations, 2 * moved, lambda: peak_bytes(train))


def least(module: Any, length: int) -> float:
    """The fewest operations of a pass over one item; a model's are those of its mixers and feed-forward layers."""
    if not isinstance(module, Encoder | Decoder):
        return module.least(length, length)
    wide = [block.channel.wider.weight.numel() for block in module.blocks]
    return sum(
        block.mixer.least(length, length) + 4.0 * length * n for block, n in zip(module.blocks, wide, strict=True)
    )


@torch.no_grad()
def decoding(module: Any, level: str, given: tuple[Tensor, ...]) -> Contender:
    """One more token after a context; the state goes on from call to call and is brought back before each sample."""
    if level == "op":
        begin, step = module.begin(given[0].shape[0], given[0]), module.extend
        token = tuple(t[:, :, -1:] for t in given)
    else:
        begin, step = module.start(given[0].shape[0]), module.stream
        token = (given[0][:, -1:],)
    _, after = step(*given, begin)
    state = after

    @torch.no_grad()
    def back() -> None:
        nonlocal state
        _, state = step(*token, after)

    @torch.no_grad()
    def run() -> Tensor:
        nonlocal state
        y, state = step(*token, state)
        return y

    return Contender(run, back, 0.0, 0, lambda: state_bytes(after))


def state_bytes(state: Any) -> int:
    """Of the tensors that a state is made of; of a cache, the part that is filled."""
    if isinstance(state, Cache):
        filled = [t[:, :, : state.position - state.first] for t in (state.k_BGSD, state.v_BGSE)]
        return moved_bytes(*filled)
    if isinstance(state, Tensor):
        return moved_bytes(state)
    return sum(map(state_bytes, state)) if isinstance(state, tuple | list) else 0


def floor(contender: Contender, machine: Limits) -> float | None:
    """Seconds that no implementation can beat; None where nobody has worked out the operations."""
    return machine.floor(contender.operations, contender.moved) if contender.operations else None
