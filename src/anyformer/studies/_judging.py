"""What the numbers of records say: intervals over seeds and over rounds, and the words for where they lie."""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np

from anyformer.measure.scaling import Floats, log_medians, old_method
from anyformer.measure.time import ratio
from anyformer.studies import Row, Word

T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 97.5 % of Student's t, 1 to 9 degrees of freedom
DRAWS = 200


class Span(NamedTuple):
    """A number with its 95 % interval."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        middle, low, high = (f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}" for value in self)
        return f"{middle} [{low}, {high}]"


# Words


def above(found: Span, threshold: float) -> Word:
    """Whether something lies above the threshold."""
    return "reproduced" if found.low > threshold else "refuted" if found.high < threshold else "inconclusive"


def within(found: Span, least: float, most: float) -> Word:
    if least <= found.low and found.high <= most:
        return "reproduced"
    return "refuted" if found.high < least or found.low > most else "inconclusive"


def everywhere(words: Collection[Word]) -> Word:
    """What is said of many cases is refuted by one."""
    if "refuted" in words:
        return "refuted"
    return "reproduced" if set(words) == {"reproduced"} else "inconclusive"


# Seeds


def over_seeds(values: Sequence[float]) -> Span:
    """The mean of at least two, by Student's t, since seeds are few."""
    half = T95[min(len(values) - 2, len(T95) - 1)] * stdev(values) / math.sqrt(len(values))
    return Span(mean(values), mean(values) - half, mean(values) + half)


# Time: `results` are those of anyformer.studies._timing


def ratios(results: Row, name: str, than: str) -> dict[int, Span]:
    """At each length, how many times as long it takes."""
    rows = zip(results["lengths"], results["seconds"][name], results["seconds"][than], strict=True)
    return {n: Span(*ratio(ours, theirs)) for n, ours, theirs in rows if ours and theirs}


def each(found: Mapping[int, Span]) -> str:
    return ", ".join(f"{one} at {n}" for n, one in found.items())


def rounds_up_to(results: Row, name: str, longest: int) -> dict[int, list[float]]:
    rows = zip(results["lengths"], results["seconds"][name], strict=True)
    return {n: taken for n, taken in rows if taken and n <= longest}


def drawn(rounds: Mapping[int, Sequence[float]]) -> Floats:
    """The median of each length, then of its rounds drawn again: (1 + DRAWS, lengths)."""
    return np.exp(log_medians(list(rounds.values()), DRAWS))


def spanned(values: Sequence[float]) -> Span:
    """The first, and where the others lie; they may be infinite."""
    first, *others = values
    others.sort()
    return Span(first, others[int(0.025 * len(others))], others[int(0.975 * len(others)) - 1])


def growth(results: Row, name: str) -> Span:
    """How many times as long the last length takes as the first."""
    seconds_DL = drawn(rounds_up_to(results, name, results["lengths"][-1]))
    return spanned((seconds_DL[:, -1] / seconds_DL[:, 0]).tolist())


def whole(results: Row, name: str, than: str, tokens: int) -> Span:
    """How many times as long a sequence takes if each token takes its seconds after those before it.

    Between two lengths the seconds grow along a line; before the first length they are as they are there.
    """
    both = [drawn(rounds_up_to(results, one, tokens)) for one in (name, than)]
    lengths = [0, *(n for n in results["lengths"] if n <= tokens), tokens]
    ours_D, theirs_D = (np.diff(lengths) @ between(seconds_DL).T for seconds_DL in both)
    return spanned((ours_D / theirs_D).tolist())


def between(seconds_DL: Floats) -> Floats:
    padded = np.pad(seconds_DL, ((0, 0), (1, 1)), mode="edge")
    return (padded[:, 1:] + padded[:, :-1]) / 2


def extrapolated(results: Row, name: str, than: str, longest: int) -> Span:
    """Where it overtakes, by the older regression on the lengths up to `longest`; infinite if nowhere."""
    ours, theirs = (rounds_up_to(results, one, longest) for one in (name, than))
    pairs = zip(drawn(theirs), drawn(ours), strict=True)
    met = [old_method(list(ours), a.tolist(), b.tolist()) for a, b in pairs]
    return spanned([math.inf if one is None else one for one in met])


def power(found: Row | None) -> str:
    """An exponent in words."""
    return f"N^{found['median']:.2f} [{found['low']:.2f}, {found['high']:.2f}]" if found else "N^? (too few lengths)"


def crossed(found: Row) -> str:
    """A crossover in words."""
    if found["kind"] == "measured":
        return f"from {found['length']:.0f} tokens on [{found['low']:.0f}, {found['high']:.0f}]"
    if found["kind"] == "none":
        return f"nowhere up to {found['up_to']} tokens"
    return {"from the first length": "from the first length on"}.get(found["kind"], "from where the rounds do not tell")
