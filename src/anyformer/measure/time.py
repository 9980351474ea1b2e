"""Time in interleaved rounds: whatever slows the machine for a while slows every variant alike."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import NamedTuple

import torch

SHORTEST = 0.005  # seconds that one sample lasts at least, in repeated calls if need be


class Interval(NamedTuple):
    """A median with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float


def rounds(
    runs: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    at_least: int = 5,
    at_most: int = 200,
    before: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    most_calls: int = 1 << 20,
) -> dict[str, list[float]]:
    """Seconds a call of each variant, round by round; the variants take turns at being first.

    As many rounds as fit into `seconds`, but not fewer than `at_least`. What stands in `before` runs before each
    sample of its variant and is not timed; a sample has `most_calls` calls at most.
    """
    began = perf_counter()
    calls = {}
    for name, run in runs.items():
        before.get(name, nothing)()
        sample(run, 1)  # warm-up: allocations, first-touch, lazy imports
        calls[name] = min(most_calls, max(1, math.ceil(SHORTEST / max(sample(run, 1), 1e-7))))
    names = list(runs)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(at_most):
        if turn >= at_least and perf_counter() - began > seconds:
            break
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            before.get(name, nothing)()
            taken[name].append(sample(runs[name], calls[name]))
    return taken


def nothing() -> None:
    pass


def sample(run: Callable[[], object], calls: int) -> float:
    synchronize()
    began = perf_counter()
    for _ in range(calls):
        run()
    synchronize()
    return (perf_counter() - began) / calls


def synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def ratio(above: Sequence[float], below: Sequence[float], *, draws: int = 1000) -> Interval:
    """How many times longer `above` takes than `below`, round against round of the same run."""
    return interval([a / b for a, b in zip(above, below, strict=True)], draws=draws)


def interval(values: Sequence[float], *, draws: int = 1000) -> Interval:
    """The median, and where it falls when the values are drawn again with replacement."""
    drawn = random.Random(0)
    medians = sorted(median(drawn.choices(values, k=len(values))) for _ in range(draws))
    return Interval(median(values), medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1])


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
