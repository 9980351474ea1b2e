"""Where a mechanism overtakes the baseline: what to measure next within a budget, and what the measurements say.

The scheduler first walks a grid of lengths, the short ones of every field before the long ones; then it refines each
crossing by bisection. It keeps to its budget by predicting from what is measured already, and says what it left out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log2
from statistics import median
from typing import Any, NamedTuple, Protocol

from anyformer.measure import crossing, scaling
from anyformer.measure.time import interval, ratio

Row = dict[str, Any]
Repeats = dict[str, dict[str, list[float]]]  # a cell -> each contender's rounds

GRID_SHARE = 0.65  # of the budget at most, so that something remains for refinement
SHORT_OF_TIME = "no time left"
SPARE = 6  # calls beyond the rounds: four that warm up, a round that was begun in time, and the machine's moods
LOWEST = "op, else layer"  # the level of each mechanism unless one is asked for
TRIES = 3  # of a length at which somebody else was using the machine
OTHER_MODE = 3  # times that a call takes in another mode, when nothing else is known
OLD_LENGTHS = 4  # the student study extrapolated from so many


class Field(NamedTuple):
    """Those who are measured together: the same inputs, the same work for a model."""

    level: str
    causal: bool
    mode: str  # forward, train, decode; or one of these and "memory"
    names: tuple[str, ...]
    baselines: tuple[str, ...]
    lengths: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"{self.mode}, {'causal' if self.causal else 'full'}, {self.level}"

    @property
    def memory(self) -> bool:
        return self.mode.endswith(" memory")

    def cell(self, length: int) -> str:
        return f"{self.title}, {length}"


class Cell(NamedTuple):
    """One field at one length, and who takes part."""

    field: Field
    length: int
    names: tuple[str, ...]


class Measuring(Protocol):
    """What the scheduler needs of the world; a test gives it a fake one with a clock of its own."""

    disturbed: bool  # whether somebody else used the machine during the last measurement

    def probe(self, cell: Cell, name: str) -> float:
        """Seconds of one call, once it is warm."""

    def measure(self, cell: Cell, names: Sequence[str], seconds: float, at_least: int) -> dict[str, list[float]]:
        """Rounds of those together."""

    def clock(self) -> float: ...

    def tell(self, text: str, left: float) -> None: ...


class Referee:
    """The measurements so far, and why some are missing."""

    def __init__(self, fields: Sequence[Field], repeats: Repeats | None = None, disturbed: Iterable[str] = ()) -> None:
        self.fields = fields
        self.repeats: Repeats = {} if repeats is None else repeats
        self.disturbed = list(disturbed)  # keys of repeats that say nothing: the machine was not ours
        self.left_out: dict[tuple[str, str], dict[int, str]] = {}  # field's title, name -> length -> why
        self.too_slow: set[tuple[str, str]] = set()
        self.probed: dict[tuple[str, str], dict[int, float]] = {}  # field's title, name -> length -> seconds

    def run(self, world: Measuring, budget: float) -> None:
        """Measure until everything is known or the budget is spent; what is there already is not measured again."""
        end = world.clock() + budget
        grid_end = end - (1 - GRID_SHARE) * budget
        cells = [Cell(field, length, field.names) for field in self.fields for length in field.lengths]
        cells.sort(key=lambda cell: cell.length)
        weights = [c.length * len(c.names) * (1 if c.field.mode.startswith("forward") else 3) for c in cells]
        for n, cell in enumerate(cells):
            if cell.field.cell(cell.length) in self.repeats:
                continue
            share = max(0.0, grid_end - world.clock()) * weights[n] / sum(weights[n:])
            self.grid_cell(world, cell, share, end)
        while (needed := self.next_refinement(end - world.clock())) is not None:
            world.tell(f"{needed.field.title}, {needed.length} tokens: closing in", end - world.clock())
            again = 1 if needed.field.memory else crossing.REFINED
            self.measure(world, needed, self.entrants(needed), 0.0, again)

    def measure(self, world: Measuring, cell: Cell, names: Sequence[str], seconds: float, at_least: int) -> None:
        """Keep the rounds under the cell's name, or that and (2) when it is there already."""
        title, nth = cell.field.cell(cell.length), 1
        while (key := title if nth == 1 else f"{title} ({nth})") in self.repeats:
            nth += 1
        self.repeats[key] = world.measure(cell, names, seconds, at_least)
        if world.disturbed:
            self.disturbed.append(key)

    def entrants(self, cell: Cell) -> list[str]:
        return [*cell.field.baselines, *cell.names]

    # The grid

    def grid_cell(self, world: Measuring, cell: Cell, share: float, end: float) -> None:
        """The baseline and as many of the others as fit into the time, the quick ones first; and why not the rest."""
        names, costs = [], {}
        rounds = 1 if cell.field.memory else crossing.ROUNDS
        for name in self.entrants(cell):
            guess = self.predicted(cell, name)
            left = end - world.clock()
            if (cell.field.title, name) in self.too_slow or left <= (rounds + SPARE) * (guess or 0.0):
                self.leave_out(cell, name, SHORT_OF_TIME)
                continue
            try:
                costs[name] = world.probe(cell, name)
                self.probed.setdefault((cell.field.title, name), {})[cell.length] = costs[name]
            except (ValueError, RuntimeError) as refused:  # RuntimeError: not enough memory
                self.leave_out(cell, name, " ".join(str(refused).split()))
                continue
            names.append(name)
        names = [b for b in cell.field.baselines if b in costs] + sorted(
            (name for name in names if name not in cell.field.baselines), key=lambda name: costs[name]
        )
        taking: list[str] = []
        for name in names:
            needed = (rounds + SPARE) * sum(costs[other] for other in [*taking, name])
            if needed <= end - world.clock():
                taking.append(name)
            else:
                self.leave_out(cell, name, SHORT_OF_TIME)
        if not set(taking) & set(cell.field.baselines) or not set(taking) - set(cell.field.baselines):
            for name in set(taking) - set(cell.field.baselines):
                self.leave_out(cell, name, "the baseline was left out")
            return
        world.tell(f"{cell.field.title}, {cell.length} tokens", end - world.clock())
        share = min(share, end - world.clock() - 2 * sum(costs[name] for name in taking))
        self.measure(world, cell, taking, share, rounds)

    def leave_out(self, cell: Cell, name: str, why: str) -> None:
        """Who is too slow at one length is left out at the longer ones too, so that no verdict has gaps."""
        self.left_out.setdefault((cell.field.title, name), {})[cell.length] = why
        if why == SHORT_OF_TIME:
            self.too_slow.add((cell.field.title, name))

    def predicted(self, cell: Cell, name: str) -> float | None:
        """Seconds of a call, from the next shorter length that is measured; quadratic, the worst that is likely."""
        if cell.field.memory:
            return None
        guesses = []
        for field in [cell.field, *self.fields]:
            known = {} if field.memory else self.costs(field, name)
            last = max((length for length in known if length <= cell.length), default=None)
            if last is not None:
                other = 1 if field.mode == cell.field.mode else OTHER_MODE
                guesses.append(other * known[last] * (cell.length / last) ** 2)
                if field == cell.field:
                    break
        return max(guesses, default=None)

    def costs(self, field: Field, name: str) -> dict[int, float]:
        """Seconds of a call by length: from undisturbed rounds, else as first tried."""
        rounds = self.by_length(field, name)
        told = {n for n, keys in self.together(field, name).items() if any(key not in self.disturbed for key in keys)}
        return {**self.probed.get((field.title, name), {}), **{n: median(rounds[n]) for n in told}}

    def together(self, field: Field, *names: str) -> dict[int, list[str]]:
        """By length, the keys of the rounds in which all of these took part."""
        found: dict[int, list[str]] = {}
        for key, taken in self.repeats.items():
            title, _, length = key.rpartition(", ")
            if title == field.title and taken.keys() >= set(names):
                found.setdefault(int(length.split()[0]), []).append(key)  # "512 (2)" is there when measured twice
        return dict(sorted(found.items()))

    def by_length(self, field: Field, name: str, *others: str) -> dict[int, list[float]]:
        """The rounds of a mechanism in which the others took part: the undisturbed ones, or all if there are none."""
        found = {}
        for length, keys in self.together(field, name, *others).items():
            good = [key for key in keys if key not in self.disturbed]
            found[length] = [value for key in good or keys for value in self.repeats[key][name]]
        return found

    def clean(self, field: Field, name: str, against: str) -> dict[int, list[float]]:
        """The ratios that nobody disturbed."""
        lengths = self.together(field, name, against)
        told = {n for n, keys in lengths.items() if any(key not in self.disturbed for key in keys)}
        return {n: values for n, values in self.ratios(field, name, against).items() if n in told}

    # Refinement

    def next_refinement(self, left: float) -> Cell | None:
        """The cheapest length that some crossing still needs, with everybody who needs it."""
        wanted: dict[tuple[Field, int], list[str]] = {}
        for field in self.fields:
            for name in field.names:
                ratios = self.clean(field, name, field.baselines[0])
                tries = {n: len(keys) for n, keys in self.together(field, name, field.baselines[0]).items()}
                again = [n for n, tried in tries.items() if n not in ratios and tried < TRIES]
                length = again[0] if again else crossing.next_length(ratios, ()) if ratios else None
                if length is not None and tries.get(length, 0) < TRIES:
                    wanted.setdefault((field, length), []).append(name)
        cells = [Cell(field, length, tuple(names)) for (field, length), names in wanted.items()]
        for cell in sorted(cells, key=self.cost):
            if self.cost(cell) <= left:
                return cell
        return None

    def cost(self, cell: Cell) -> float:
        """Seconds that its refinement takes, no less."""
        if cell.field.memory:
            return 0.0
        each = sum(self.interpolated(cell.field, name, cell.length) for name in self.entrants(cell))
        return (crossing.REFINED + SPARE) * max(each, 0.01)

    def interpolated(self, field: Field, name: str, length: int) -> float:
        known = self.costs(field, name)
        longer = min((n for n in known if n >= length), default=max(known, default=length))
        return known.get(longer, 0.0)

    def ratios(self, field: Field, name: str, against: str) -> dict[int, list[float]]:
        ours, theirs = self.by_length(field, name, against), self.by_length(field, against, name)
        alike = crossing.ROUNDS if field.memory else 1  # bytes are the same every time
        return {n: alike * [b / a for a, b in zip(ours[n], theirs[n], strict=True)] for n in ours}

    # What it says

    def rows(self, floors: Mapping[tuple[str, str], float | None], claims: Callable[[str, str], float]) -> list[Row]:
        """One row for each mechanism against each baseline in each field. `floors`: by cell and name."""
        return [
            row
            for field in self.fields
            for name in field.names
            for against in field.baselines
            if (row := self.row(field, name, against, floors, claims))
        ]

    def row(
        self,
        field: Field,
        name: str,
        against: str,
        floors: Mapping[tuple[str, str], float | None],
        claims: Callable[[str, str], float],
    ) -> Row | None:
        ratios = self.ratios(field, name, against)
        left_out = self.left_out.get((field.title, name), {})
        if not ratios and not left_out:
            return None
        ours, theirs = self.by_length(field, name, against), self.by_length(field, against, name)
        lengths, clean = list(ratios), self.clean(field, name, against)
        over = [floors.get((field.cell(n), name)) for n in lengths]
        return {
            "mechanism": name,
            "against": against,
            "mode": field.mode,
            "level": field.level,
            "causal": field.causal,
            "unit": "bytes" if field.memory else "seconds",
            "lengths": lengths,
            "ratios": [ratio(theirs[n], ours[n])._asdict() for n in lengths],
            "values": {
                "mechanism": [interval(ours[n])._asdict() for n in lengths],
                "against": [interval(theirs[n])._asdict() for n in lengths],
            },
            "status": [
                "inconclusive" if n not in clean or crossing.too_noisy(ratios[n]) else "measured" for n in lengths
            ],
            "over_floor": [
                interval([t / least for t in ours[n]])._asdict() if least else None
                for n, least in zip(lengths, over, strict=True)
            ],
            "exponent": exponent({n: ours[n] for n in clean}),
            "against_exponent": exponent({n: theirs[n] for n in clean}),
            "claimed_exponent": claims(name, field.mode),
            "against_claimed_exponent": claims(against, field.mode),
            "crossover": verdict(clean, lengths),
            "extrapolated": extrapolated([n for n in field.lengths if n in clean], theirs, ours, field.memory),
            "left_out": [{"length": n, "why": why} for n, why in sorted(left_out.items())],
        }


def verdict(clean: Mapping[int, Sequence[float]], lengths: Sequence[int]) -> Row:
    """Of the undisturbed lengths, if the longest measured is one of them: what stays ahead must be ahead there."""
    if lengths and lengths[-1] in clean:
        return crossing.crossover(clean)._asdict()
    return {"kind": "inconclusive", "length": None, "low": None, "high": None, "up_to": lengths[-1] if lengths else 0}


def exponent(rounds: Mapping[int, Sequence[float]]) -> Row | None:
    found = scaling.fit(list(rounds), list(rounds.values()))
    return found._asdict() if found else None


def extrapolated(
    lengths: Sequence[int], theirs: Mapping[int, Sequence[float]], ours: Mapping[int, Sequence[float]], memory: bool
) -> Row | None:
    """What the regression of the student study would have said from the shortest lengths; it was about time."""
    lengths = lengths[:OLD_LENGTHS]
    if memory or len(lengths) < OLD_LENGTHS:
        return None
    found = scaling.old_method(lengths, [median(theirs[n]) for n in lengths], [median(ours[n]) for n in lengths])
    return {"length": found, "from": lengths}


def grid(low: int, high: int) -> list[int]:
    """Doubling from the one to the other, which it ends on."""
    steps = range(int(log2(high / low)) + 1)
    return sorted({*(low * 2**n for n in steps), high})


def plan(
    names: Iterable[str],
    against: str,
    *,
    levels: Sequence[str],
    orders: Sequence[bool],
    modes: Sequence[str],
    lengths: Mapping[str, Sequence[int]],
    uncached: str,
    refused: Callable[[str, str, str, bool], str],
) -> tuple[list[Field], dict[str, str]]:
    """The fields that the request amounts to, the cheap modes first, and who takes part in none and why."""
    either = list(levels) == [LOWEST]
    levels = ("op", "layer") if either else levels
    found: list[Field] = []
    reasons: dict[str, str] = {}
    names = list(names)
    for mode in modes:
        for causal in orders:
            for level in levels:
                way = mode.removesuffix(" memory")
                if way == "decode" and not causal:
                    continue
                able = []
                for name in names:
                    why = refused(name, level, way, causal)
                    if level == "layer" and either and not refused(name, "op", way, causal):
                        continue
                    if not why:
                        able.append(name)
                    reasons.setdefault(name, why)
                baselines = (against, uncached) if mode == "decode" else (against,)
                if able and not any(refused(b, level, way, causal) for b in baselines):
                    found.append(Field(level, causal, mode, tuple(able), baselines, tuple(lengths[way])))
    taking = {name for field in found for name in field.names}
    return found, {name: reasons[name] for name in names if name not in taking}
