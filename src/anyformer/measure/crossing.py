"""The length from which a mechanism stays ahead of its baseline: bracketed, bisected, with an interval."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import comb, exp, inf, log, sqrt
from statistics import median
from typing import Literal, NamedTuple

import numpy as np

from anyformer.measure.scaling import Floats, log_medians, steady

ROUNDS = 9  # at each length of the grid
REFINED = 15  # at each length between
MARGIN = 0.02  # by how much a median must be ahead: the same code twice may differ a little, always the same way
FINE = 1.1  # neighbours in the bracket are refined until they are as close as this
LEVEL = 5  # more lengths than this in the bracket, and the two are level there: refining would not end it
NOISY = 1.5  # bounds of a ratio further apart than this do not tell who is ahead
WIDEST = 4.0  # bounds of a crossover further apart than this, two steps of the grid, are no measurement
DRAWS = 1000


class Crossover(NamedTuple):
    """The smallest length from which the mechanism stays ahead, with a 95 % interval, among lengths up to `up_to`.

    Ahead from the first length on, `length` is the first and there is no interval. Where none is found, or the
    longest length does not tell, there are no numbers. An interval that is too wide is inconclusive as well.
    """

    kind: Literal["measured", "from the first length", "none", "inconclusive"]
    length: float | None
    low: float | None
    high: float | None
    up_to: int


def crossover(ratios: Mapping[int, Sequence[float]]) -> Crossover:
    """The verdict over all lengths; `ratios` are seconds of the baseline over the mechanism's, round by round.

    Each draw of rounds has its own last length behind, and its own curve through the lengths around. The interval
    holds the bracket too: a jump is no curve.
    """
    behind, clear = bracket(ratios)
    lengths = sorted(ratios)
    first, up_to = lengths[0], lengths[-1]
    if clear is None or not ahead(ratios[up_to]):
        may_be = clear is not None or (too_noisy(ratios[up_to]) and bounds(ratios[up_to])[1] > 1 + MARGIN)
        return Crossover("inconclusive" if may_be else "none", None, None, None, up_to)
    if clear == first and ahead(ratios[first]):
        return Crossover("from the first length", float(first), None, None, up_to)
    x_L, y_DL = np.log(lengths), log_medians([ratios[length] for length in lengths], DRAWS)
    y_DL[1:] += np.random.default_rng(1).normal(0, mood(x_L, y_DL), y_DL[1:].shape)
    last_D = ((y_DL <= 0) * np.arange(1, len(lengths) + 1)).max(1) - 1  # -1: ahead everywhere
    zero_D = np.empty(len(y_DL))
    for last in np.unique(last_D).tolist():
        zero_D[last_D == last] = zeros(x_L, y_DL[last_D == last], last)
    length, low, high = np.exp([zero_D[0], *np.quantile(zero_D[1:], [0.025, 0.975])]).round(1).tolist()
    low, high = min(low, length, float(behind)), max(high, length, float(clear))
    return Crossover("measured" if high <= WIDEST * low else "inconclusive", length, low, high, up_to)


def mood(x_L: Floats, y_DL: Floats) -> float:
    """How far lengths stand off the curve of their neighbours beyond what their rounds explain: a deviation.

    The rounds of a length are taken within seconds, in which the machine may be in another mood than a minute later.
    The curve is the line through one neighbour on either side or the cubic through two: real bends show in the first
    and real jumps in the second, so the smaller is nearer to the mood.
    """
    return min(
        stand_off(x_L, y_DL, [-1, 1]) if len(x_L) >= 5 else 0.0,
        stand_off(x_L, y_DL, [-2, -1, 1, 2]) if len(x_L) >= 7 else inf,
    )


def stand_off(x_L: Floats, y_DL: Floats, neighbours: Sequence[int]) -> float:
    """By the median square, which leaves out a few lengths; of a normal variable it is 0.455 of the variance."""
    squares = []
    for n in range(max(neighbours), len(x_L) - max(neighbours)):
        near = [n + step for step in neighbours]
        powers = np.vander(x_L[near] - x_L[n], increasing=True).T
        weights = np.linalg.solve(powers, np.eye(len(near))[0])
        off_D = y_DL[:, n] - y_DL[:, near] @ weights
        squares.append(np.array([off_D[0] ** 2, np.median((off_D[1:] - off_D[0]) ** 2)]) / (1 + weights @ weights))
    seen, explained = np.median(squares, axis=0)
    return sqrt(max(0.0, seen - explained) / 0.455)


def zeros(x_L: Floats, y_DL: Floats, last: int) -> Floats:
    """Where each row rises through zero after `last`: on a parabola through the points at most an octave away."""
    if last in (-1, len(x_L) - 1):
        return x_L[[max(last, 0)]]
    middle = (x_L[last] + x_L[last + 1]) / 2
    near_L = abs(x_L - middle) < log(2)
    near_L[[last, last + 1]] = True
    x = x_L[near_L] - middle
    c, b, a = np.linalg.pinv(np.vander(x, 3, increasing=True)) @ y_DL[:, near_L].T  # of two points, almost a line
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = -2 * c / (b + np.sqrt(b**2 - 4 * a * c))
    return middle + np.where(np.isfinite(rising), rising, np.where(c > 0, x[0], x[-1])).clip(x[0], x[-1])


def next_length(ratios: Mapping[int, Sequence[float]], grid: Iterable[int]) -> int | None:
    """What to measure next: the grid from its shortest length, then within the bracket; None when done."""
    missing = sorted(set(grid) - set(ratios))
    if missing:
        return missing[0]
    behind, clear = bracket(ratios)
    if clear is None or clear == behind or not ahead(ratios[max(ratios)]):
        return None
    inside = sorted(length for length in ratios if behind <= length <= clear)
    if len(inside) > LEVEL:
        return None
    low, high = max(pairwise(inside), key=lambda gap: gap[1] / gap[0])
    middle = sqrt(low * high)
    chosen = 8 * round(middle / 8) if middle >= 64 else round(middle)
    return chosen if high > FINE * low and low < chosen < high else None


def bracket(ratios: Mapping[int, Sequence[float]]) -> tuple[int, int | None]:
    """The last length behind, or else the first; and the length from which all are ahead by the margin."""
    if not ratios:
        raise ValueError("no length was measured: there is nothing to compare")
    medians = {length: median(ratios[length]) for length in ratios}
    behind = max((length for length in medians if medians[length] <= 1), default=min(medians))
    unclear = max((length for length in medians if medians[length] < 1 + MARGIN), default=0)
    return behind, min((length for length in medians if length > unclear), default=None)


def ahead(ratios: Sequence[float]) -> bool:
    return bounds(ratios)[0] > 1 and median(ratios) >= 1 + MARGIN


def too_noisy(ratios: Sequence[float]) -> bool:
    """Whether the rounds of one length spread too far, or are too few, to tell who is ahead."""
    low, high = bounds(ratios)
    return high > NOISY * low


def bounds(ratios: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median: where a bootstrap of very many draws would end, from the ranks.

    Five rounds, all on one side of the true median once in 32 times, are the fewest that have one.
    """
    logs = steady(ratios)
    tails = accumulate(comb(len(logs), below) / 2 ** len(logs) for below in range(len(logs)))
    rank = sum(tail <= 1 / 32 for tail in tails)
    return (exp(logs[rank - 1]), exp(logs[-rank])) if rank else (0.0, inf)
