"""Whom a law judges: a mechanism of the catalog, or anybody's module with the claims made for it."""

import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor, nn

from anyformer import catalog
from anyformer.card import Card, find
from anyformer.contract import Attention, AttentionLayer, Mixer


@dataclass(frozen=True)
class Subject:
    name: str
    card: Card  # what is claimed
    dim: int
    make: Callable[..., Any]  # options -> a module; the same weights each time
    catalogued: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    built: dict[str, nn.Module] = field(default_factory=dict, repr=False)  # never run, only copied

    @property
    def orders(self) -> list[bool]:
        """The values of causal that are claimed."""
        return {"no": [False], "option": [False, True], "only": [True]}[self.card.causal]

    @property
    def trainings(self) -> list[bool]:
        return [False] if self.card.batch_statistics else [False, True]

    def layer(
        self,
        causal: bool,
        dtype: torch.dtype = torch.float64,
        *,
        training: bool = False,
        device: str = "cpu",
        length: int | None = None,
        seed: int = 0,
    ) -> Any:
        """The module, able to take `length` tokens; none of its weights stands where it makes no difference."""
        if not self.catalogued:
            return self.fresh(causal, device, length, seed).to(dtype).train(training)
        which = f"{causal} {device} {seed} {self.sized(length)}"
        if which not in self.built:
            self.built[which] = self.fresh(causal, device, length, seed)
        return copy.deepcopy(self.built[which]).to(dtype).train(training)

    def fresh(self, causal: bool, device: str = "cpu", length: int | None = None, seed: int = 0) -> Any:
        """Built anew, in float32."""
        torch.manual_seed(seed)
        with torch.device(device):
            layer = self.make(causal=causal, **self.sized(length)) if self.catalogued else self.make()
            stir(layer)
            if self.card.batch_statistics:
                layer.train()(torch.randn(4, length or self.short, self.dim))
        return layer

    def core(
        self, causal: bool, dtype: torch.dtype = torch.float64, device: str = "cpu", length: int | None = None
    ) -> Attention | None:
        """The layer's core, if it has one."""
        layer = self.layer(causal, dtype, device=device, length=length)
        return layer.core if isinstance(layer, AttentionLayer) else None

    def sized(self, length: int | None) -> dict[str, Any]:
        """The options that a mechanism with a maximum length or a grid needs for so many tokens."""
        changes: dict[str, Any] = {}
        if self.most is not None:
            changes["max_length"] = max(self.most, length or 0)
        if self.grid:
            length = length or self.short
            changes["grid"] = (height(length), length // height(length))
        return changes

    @property
    def most(self) -> int | None:
        """The maximum length for which a layer is built unless a law asks for more, if it has one."""
        return max(self.options["max_length"], self.length + 9) if "max_length" in self.options else None

    @property
    def grid(self) -> bool:
        """Whether the tokens lie on a grid, so that their number cannot change."""
        return "grid" in self.options

    def fit(self, length: int) -> int:
        """This length, or for a grid the next that makes one no more than four times as wide as high."""
        while self.grid and length > 4 * height(length) ** 2:
            length += 1
        return length

    @property
    def lengths(self) -> list[int]:
        """One token; below, at and across the block of the fast form; the maximum."""
        below, at = (self.fit(max(2, self.card.block - less)) for less in (3, 0))
        return sorted({1, 7, below, at, self.short, self.length, self.most or self.length})

    @property
    def short(self) -> int:
        """One whole block and a part of one."""
        return self.fit(self.card.block + 5)

    @property
    def length(self) -> int:
        """Two whole blocks and a part of one."""
        return self.fit(2 * max(self.card.block, 32) + 3)

    def contexts(self, length: int) -> list[int]:
        """Lengths of contexts for so many queries; a grid keeps its own."""
        if self.grid:
            return [length]
        return [other for other in (length + 9, length - 3) if 0 < other <= (self.most or other)]

    def tokens(self, batch: int, length: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
        drawn = torch.randn(batch, self.dim, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        return drawn.mT.to(dtype)  # as a model gives them: not contiguous

    def heads_of_tokens(
        self,
        core: Attention,
        length: int,
        dtype: torch.dtype = torch.float64,
        seed: int = 1,
        *,
        heads: int | None = None,
        dim: int | None = None,
    ) -> Tensor:
        shape = (2, length, heads or core.heads, dim or core.head_dim)
        drawn = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        return drawn.transpose(1, 2).to(dtype)


class Quick(Subject):
    """The same at two lengths, and only as it trains: a look before a measurement."""

    @property
    def lengths(self) -> list[int]:
        return [7, self.short]

    @property
    def trainings(self) -> list[bool]:
        return [not self.card.batch_statistics]


def height(length: int) -> int:
    """Of the grid nearest to a square that holds so many tokens."""
    return next(h for h in range(isqrt(length), 0, -1) if length % h == 0)


@torch.no_grad()
def stir(module: nn.Module) -> None:
    """A weight that starts as all zeros or ones hides what is done with it."""
    for weight in module.parameters():
        if not weight.is_meta and weight.numel() and (weight == weight.flatten()[0]).all():
            weight.add_(torch.randn_like(weight), alpha=0.1)


def catalogued(spec: str, kind: type[Subject] = Subject) -> Subject:
    """A mechanism, in the tiny setting of its card."""
    entry, variant = find(spec)
    card = entry.card.of(variant)
    tiny = dict(card.tiny)

    def make(**changes: Any) -> Mixer:
        return catalog.build(spec, **{**tiny, **changes})

    return kind(spec, card, tiny["dim"], make, options={k: v for k, v in tiny.items() if k != "dim"})


def foreign(target: str, *, dim: int = 16, causal: bool = False, cross: bool = False, padding: bool = False) -> Subject:
    """Anybody's module: `package.module:factory`, whose result is called as f(x, context=None, *, keep=None)."""
    module, _, name = target.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        raise ValueError(f"cannot import {module} ({missing}); run from the folder that holds it") from None
    except AttributeError:
        raise ValueError(f"{module} has no {name!r}; name the function that returns your module") from None

    def make() -> nn.Module:
        made = factory()
        if not isinstance(made, nn.Module):
            raise TypeError(f"{target} must return a torch.nn.Module, not {type(made).__name__}")
        try:
            return copy.deepcopy(made)  # it may be the same one each time
        except Exception:  # a matter for the law of copies
            return made

    card = Card(
        title=target,
        paper="",
        year=0,
        slot="mixer",
        causal="only" if causal else "no",
        cross=cross,
        padding=padding,
        stream="none",
        state="none",
        time=float("nan"),
        memory=float("nan"),
        block=16,
        order=True,
    )
    return Subject(target, card, dim, make, catalogued=False)


@contextmanager
def little_cache() -> Iterator[None]:
    """Fast forms that take as many rows at once as stay in cache, by their module's CACHED, now take few."""
    modules = [m for name, m in sys.modules.items() if name.startswith("anyformer.") and hasattr(m, "CACHED")]
    before = [m.CACHED for m in modules]
    try:
        for m in modules:
            m.CACHED = 1  # type: ignore[attr-defined]
        yield
    finally:
        for m, cached in zip(modules, before, strict=True):
            m.CACHED = cached  # type: ignore[attr-defined]


@contextmanager
def poisoned() -> Iterator[None]:
    """Whatever is allocated without a value holds NaN, so that reading it shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
