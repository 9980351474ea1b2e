"""The records of a study's trials, checked: trainings and timings, and the numbers that they come to.

Whatever stands in a record may have been written by anybody; one that cannot be read is named, and nothing is from it.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import linear_regression, mean, median, stdev
from typing import Any, NamedTuple

from anyformer.reports import figures
from anyformer.reports.curves import STYLES, Curve
from anyformer.reports.figures import Crossing, Interval, Point, Row, Series, listed, number, part, positive, printable

PAIR = ("softmax", "linear")
LEVELS = {"short": "one layer, short", "layer": "one layer", "model": "whole model", "decode": "decoding"}
DATA = ("fresh", "fixed")
SEPARATOR = 10  # the token behind a sequence; smaller ones are symbols
FLOOR = 1e-6  # of a loss that is drawn
MOST = 1000  # rounds, or symbols of a copy

Seconds = Mapping[float, tuple[float, float]]  # of softmax and of linear, at each length


class Training(NamedTuple):
    """One model, trained with one seed."""

    data: str
    steps: int
    activation: str
    length: int
    mechanism: str
    seed: int
    curve: list[tuple[float, float]]  # step and loss
    diverged: bool
    numbers: dict[str, float]
    samples: list[tuple[list[int], list[int]]]  # what was read, and what was written

    @property
    def group(self) -> tuple[str, int, str]:
        return self.data, self.steps, self.activation


class Timing(NamedTuple):
    """Several contenders in turn, alone on the machine."""

    what: Row
    lengths: list[float]
    seconds: dict[str, dict[float, list[float]]]  # of each contender, the rounds at a length
    held: dict[str, dict[float, float]]  # bytes
    exponents: dict[str, Interval | None]
    crossings: dict[str, Crossing]
    left_out: list[float]  # lengths for which no time was left


class Study(NamedTuple):
    records: list[Row]
    trainings: list[Training]
    timings: dict[str, Timing]
    unread: list[str]

    @property
    def seeds(self) -> list[int]:
        return sorted({t.seed for t in self.trainings})

    @property
    def steps(self) -> int:
        """Those of all trainings but the long ones."""
        return min((t.steps for t in self.trainings), default=0)


# Reading


def read(name: str, records: Iterable[Row]) -> Study:
    """The newest finished record of each trial and seed; a ValueError if they are of several presets."""
    done = [
        record
        for record in records
        if (record.get("kind"), part(record, "what").get("study"), record.get("status")) == ("study", name, "done")
    ]
    if len({printable(part(record, "what").get("preset")) for record in done}) > 1:
        raise ValueError("these records are of several presets, which tell different things: show one at a time")
    newest = {(printable(part(r, "what").get("trial")), printable(r.get("seed"))): r for r in done}
    kept = list(newest.values())
    trainings: list[Training] = []
    timings: dict[str, Timing] = {}
    unread = []
    for record in kept:
        what, results = part(record, "what"), next(iter(listed(record, "results")), None)
        try:
            if not isinstance(results, dict):
                raise ValueError("it has no results")
            if what.get("part") == "timing":
                timings[one_of(LEVELS, what.get("level"))] = timing(what, results)
            else:
                trainings.append(training(what, whole(record.get("seed")), results))
        except ValueError as why:
            unread.append(f"{printable(what.get('trial'))}: {printable(str(why))}")
    trainings.sort(
        key=lambda t: (
            *(DATA.index(t.data), t.activation != "relu", t.activation, t.steps),
            *(t.length, place(t.mechanism), t.seed),
        )
    )
    return Study(kept, trainings, timings, unread)


def place(mechanism: str) -> int:
    """In every list and legend."""
    return list(STYLES).index(mechanism)


def training(what: Row, seed: int, results: Row) -> Training:
    scores = {"": results, "fresh ": part(results, "evaluation"), "set ": part(results, "training_evaluation")}
    return Training(
        data=one_of(DATA, what.get("data")),
        steps=whole(what.get("steps")),
        activation=printable(what.get("activation")),
        length=whole(what.get("length")),
        mechanism=one_of(STYLES, what.get("mechanism")),
        seed=seed,
        curve=[point(one) for one in listed(results, "curve")],
        diverged=results.get("diverged") is True,
        numbers={
            prefix + name: value
            for prefix, said in scores.items()
            for name in said
            if (value := number(said[name])) is not None
        },
        samples=[
            (tokens(listed(sample, "source")), tokens(listed(sample, "copy")))
            for sample in listed(results, "samples")
            if isinstance(sample, dict)
        ],
    )


def point(value: Any) -> tuple[float, float]:
    step, loss = map(number, value) if isinstance(value, list) and len(value) == 2 else (None, None)
    if step is None or loss is None or step < 0 or loss < 0:
        raise ValueError("its curve has points without a step and a loss")
    return step, loss


def tokens(values: Sequence[Any]) -> list[int]:
    """-1 is none that is known."""
    return [value if type(value) is int and 0 <= value <= SEPARATOR else -1 for value in values[:MOST]]


def timing(what: Row, results: Row) -> Timing:
    lengths = [n for n in map(positive, listed(results, "lengths")) if n]
    seconds, held, exponents, crossings = (part(results, key) for key in ("seconds", "bytes", "exponent", "crossover"))
    if not lengths or not set(PAIR) <= seconds.keys() <= STYLES.keys():
        raise ValueError("it has no times of softmax and linear, or times of something unknown")
    return Timing(
        what,
        lengths,
        {name: rounds(lengths, listed(seconds, name)) for name in seconds},
        {name: {n: b for n, b in zip(lengths, map(positive, listed(held, name)), strict=True) if b} for name in held},
        {name: figures.interval(exponents.get(name), number) for name in seconds},
        {name: crossing(part(crossings, name), max(lengths)) for name in crossings},
        [n for n in map(positive, listed(results, "left_out")) if n],
    )


def rounds(lengths: Sequence[float], columns: Sequence[Any]) -> dict[float, list[float]]:
    """Those of the lengths that have some."""
    found = {}
    for length, column in zip(lengths, columns, strict=True):
        if column is not None:
            seconds = [positive(one) for one in column] if isinstance(column, list) else []
            found[length] = [one for one in seconds if one]
            if not 0 < len(found[length]) == len(seconds) <= MOST:
                raise ValueError("its rounds are not all numbers above 0")
    return found


def crossing(said: Row, longest: float) -> Crossing:
    length, low, high = (positive(said.get(name)) for name in ("length", "low", "high"))
    kind = one_of(figures.KINDS, said.get("kind"))
    if kind == "measured" and length is None:
        raise ValueError("its crossover has no length")
    return Crossing(kind, length, low, high, positive(said.get("up_to")) or longest)


def whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 10**9:
        raise ValueError(f"{printable(value)} is no whole number that can be")
    return value


def one_of(known: Iterable[str], value: Any) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{printable(value)} is not known here")
    return value


# Trainings


def over_seeds(found: Sequence[Training]) -> Curve:
    """Step, mean and standard deviation; a seed that stopped early is missing from then on."""
    losses: dict[float, list[float]] = {}
    for t in found:
        for step, loss in t.curve:
            losses.setdefault(step, []).append(max(loss, FLOOR))
    return [(step, mean(all_), stdev(all_) if len(all_) > 1 else 0.0) for step, all_ in sorted(losses.items())]


# Timings


def interval(values: Sequence[float], draws: int = 1000) -> Interval:
    """The median, and where it falls when the values are drawn again with replacement."""
    drawn = random.Random(0)
    medians = sorted(median(drawn.choices(values, k=len(values))) for _ in range(draws))
    return Interval(median(values), medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1])


def slower(t: Timing, name: str, than: str) -> dict[float, Interval]:
    """At each length, how many times as long it takes, round against round."""
    ours, theirs = t.seconds.get(name, {}), t.seconds.get(than, {})
    return {n: interval([a / b for a, b in zip(ours[n], theirs[n], strict=False)]) for n in ours if n in theirs}


def medians(t: Timing, name: str) -> dict[float, float]:
    return {n: median(found) for n, found in t.seconds[name].items()}


def compared(t: Timing, name: str, against: str = "softmax", called: str = "") -> Series:
    """As the figures take it; `called` is its name there."""
    ratios = slower(t, against, name)
    ours, theirs = ({n: interval(found) for n, found in t.seconds[who].items()} for who in (name, against))
    points = [Point(n, ratios.get(n), ours.get(n), theirs.get(n), True, None) for n in t.lengths]
    return drawable(called or name, against, points, t.crossings.get(name) if against == "softmax" else None)


def state(t: Timing) -> list[Point]:
    """Bytes of linear and of softmax."""
    ours, theirs = (t.held.get(name, {}) for name in ("linear", "softmax"))
    return [Point(n, None, exactly(ours[n]), exactly(theirs[n]), True, None) for n in ours if n in theirs]


def drawable(name: str, against: str, points: list[Point], at: Crossing | None = None, held: bool = False) -> Series:
    nowhere = Crossing("none", None, None, None, 0.0)
    return Series(name, against, "layer", "train", held, True, points, at or nowhere, {}, {}, None, [], [])


def at(length: float | None) -> Crossing:
    """A crossing of which no interval is known."""
    return Crossing("measured" if length else "none", length, None, None, 0.0)


def exactly(value: float) -> Interval:
    return Interval(value, value, value)


def regression(seconds: Seconds) -> tuple[float, float, float, float]:
    """a, c, d and b, where softmax takes a + c N^2 and linear d + b N."""
    c, a = linear_regression([n**2 for n in seconds], [s for s, _ in seconds.values()])
    b, d = linear_regression(list(seconds), [s for _, s in seconds.values()])
    return a, c, d, b


def meeting(seconds: Seconds) -> float | None:
    """Where these meet at last, if they do and linear comes from behind."""
    a, c, d, b = regression(seconds)
    under = b**2 - 4 * c * (a - d)
    root = (b + sqrt(under)) / (2 * c) if c > 0 and under > 0 else 0.0
    return root if root > 0 else None
