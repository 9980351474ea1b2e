"""Who is timed against whom: one file a mechanism, found by its name.

A file has `contests()`, which yields a `Contest` for every setting and size, the small ones first. Every entrant gets
the same tensors. The first entrant is ours.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

HEADS, HEAD_DIM = 8, 64
LENGTHS = (512, 2048, 8192)


class Entrant(NamedTuple):
    run: Callable[..., Tensor]
    differs: str = ""  # what else it computes, where it is not the same function
    module: nn.Module | None = None  # whose parameters get gradients too


class Contest(NamedTuple):
    mechanism: str  # name:variant, whose laws must pass
    setting: str
    size: dict[str, int]
    inputs: tuple[Tensor, ...]
    entrants: dict[str, Entrant]
    operations: float  # the fewest that a forward pass needs, by formula; a backward pass needs twice as many
    moved: float  # bytes of inputs and outputs, each once, of a forward pass


def heads_of_tokens(length: int, count: int = 3) -> tuple[Tensor, ...]:
    """q, k and v as a layer's projections give them: heads beside one another in memory."""
    drawn = torch.Generator().manual_seed(length)
    return tuple(torch.randn(1, length, HEADS, HEAD_DIM, generator=drawn).transpose(1, 2) for _ in range(count))


def over_lengths() -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    for length in LENGTHS:
        yield length, heads_of_tokens(length)


def moved_by_attention(length: int) -> float:
    """q, k and v read, y written, once, in float32."""
    return 4.0 * 4 * length * HEADS * HEAD_DIM
