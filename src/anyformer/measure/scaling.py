"""How time grows with the sequence length: an exponent from interleaved rounds, and the older extrapolations."""

from collections.abc import Sequence
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from anyformer.measure.time import Interval

POWERS = np.linspace(0.0, 4.0, 801)  # the exponents tried

Floats = NDArray[np.float64]


def fit(lengths: Sequence[int], rounds: Sequence[Sequence[float]], *, draws: int = 200) -> Interval | None:
    """The exponent p of seconds = a + b N^p, a >= 0, b > 0, between 0 (no growth) and 4, with a 95 % interval.

    `rounds` holds the seconds of each length's rounds. Residuals are relative, since times span decades.
    Three parameters go through any three points, so fewer than four lengths give None.
    """
    if len({length for length, _ in zip(lengths, rounds, strict=True)}) < 4:
        return None
    powers = exponents(np.asarray(lengths, float), np.exp(log_medians(rounds, draws)))
    low, high = np.quantile(powers[1:], [0.025, 0.975]).tolist()
    return Interval(float(powers[0]), low, high)


def exponents(length_L: Floats, seconds_DL: Floats) -> Floats:
    """For each row the best of POWERS; a and b follow from each in closed form."""
    grown_LP = (length_L / length_L.max())[:, None] ** POWERS[1:]
    weight_DL = 1 / seconds_DL
    aa, a1 = (weight_DL**2).sum(1, keepdims=True), weight_DL.sum(1, keepdims=True)
    ab, bb, b1 = weight_DL**2 @ grown_LP, weight_DL**2 @ grown_LP**2, weight_DL @ grown_LP
    determinant = aa * bb - ab**2
    a, b = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    constant = a1**2 / aa  # what a alone explains
    explained_DP = np.where(b <= 0, constant, np.where(a < 0, b1**2 / bb, a * a1 + b * b1))
    return POWERS[np.hstack([constant, explained_DP]).round(9).argmax(1)]  # equal up to rounding: the smallest


def log_medians(rounds: Sequence[Sequence[float]], draws: int) -> Floats:
    """Logarithms of each length's median (1 + draws, lengths): of its rounds, then of its rounds drawn again."""
    random = np.random.default_rng(0)
    columns = []
    for values in map(steady, rounds):
        drawn = random.integers(len(values), size=(draws, len(values)))
        columns.append(np.concatenate([[np.median(values)], np.median(values[drawn], axis=1)]))
    return np.stack(columns, 1)


def steady(values: Sequence[float]) -> Floats:
    """Logarithms, in order; each at most twice as far from the median as two thirds of them are.

    Two rounds out of nine are where the interval of a median ends, so outliers must not stand there as they are.
    """
    if not values or not all(0 < value < inf for value in values):
        raise ValueError("a length needs rounds, each a number above 0: measure it again")
    logs = np.sort(np.log(values))
    middle = np.median(logs)
    most = 2 * np.sort(abs(logs - middle))[-(-2 * len(logs) // 3) - 1]
    return logs.clip(middle - most, middle + most)


# What a regression over a few short lengths says


def old_method(
    lengths: Sequence[int], softmax_seconds: Sequence[float], linear_seconds: Sequence[float]
) -> float | None:
    """Where a linear mechanism overtakes softmax if softmax takes a + c N^2, without a linear term.

    Ordinary least squares on seconds. None if they never meet or the mechanism does not come from behind.
    """
    return overtaking(coefficients(lengths, softmax_seconds, [0, 2]) - coefficients(lengths, linear_seconds, [0, 1]))


def full_quadratic(
    lengths: Sequence[int], softmax_seconds: Sequence[float], linear_seconds: Sequence[float]
) -> float | None:
    """The same if softmax takes a + b N + c N^2."""
    return overtaking(coefficients(lengths, softmax_seconds, [0, 1, 2]) - coefficients(lengths, linear_seconds, [0, 1]))


def coefficients(lengths: Sequence[int], seconds: Sequence[float], powers: list[int]) -> Floats:
    """Of 1, N and N^2, where `powers` are fitted."""
    if len(set(lengths)) < len(powers):
        raise ValueError(f"{len(powers)} coefficients need as many lengths, not {len(set(lengths))}: measure more")
    found = np.zeros(3)
    found[powers] = np.linalg.lstsq(np.vander(lengths, 3, increasing=True)[:, powers], np.asarray(seconds))[0]
    return found


def overtaking(difference: Floats) -> float | None:
    """The larger root of a + b N + c N^2, if it is positive and the difference rises there."""
    a, b, c = difference.tolist()
    under = b**2 - 4 * a * c
    if c <= 0 or under <= 0:
        return None
    root = (sqrt(under) - b) / (2 * c)
    return root if root > 0 else None
