"""Rounds at growing lengths within a budget, and what they come to, as the results of a trial."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

from anyformer.measure.crossing import REFINED, ROUNDS, crossover, next_length
from anyformer.measure.scaling import fit
from anyformer.measure.time import rounds
from anyformer.studies import Row

Make = Callable[[str, int], Callable[[], object] | None]  # a contender at a length, ready to be called


def timed(names: Sequence[str], make: Make, lengths: Sequence[int], budget: float) -> Row:
    """Rounds at every length that fits into the budget.

    The first is the baseline; closer and closer around where the second overtakes it, further lengths are measured.
    """
    began, taken = perf_counter(), dict[int, dict[str, list[float]]]()
    left_out: list[int] = []
    share = budget / (4 * len(lengths))  # of a length; the long ones take more
    while True:
        ratios = {n: [a / b for a, b in zip(t[names[0]], t[names[1]], strict=True)] for n, t in taken.items()}
        length = next_length(ratios, set(lengths) - set(left_out))
        if length is None:
            break
        below = max((n for n in taken if n < length), default=None)
        at_least = ROUNDS if length in lengths else REFINED
        if below is not None:
            each = sum(median(t) for t in taken[below].values()) * (length / below) ** 2
            if each * (at_least + 3) > budget - (perf_counter() - began):
                if length not in lengths:
                    break
                left_out += [n for n in lengths if n >= length]
                continue
        runs = {name: step for name in names if (step := make(name, length)) is not None}
        taken[length] = rounds(runs, seconds=share, at_least=at_least, at_most=2 * at_least)
    return summed_up(names, dict(sorted(taken.items()))) | {"left_out": left_out}


def summed_up(names: Sequence[str], taken: Mapping[int, Mapping[str, list[float]]]) -> Row:
    def exponent(name: str) -> Row | None:
        own = {n: t[name] for n, t in taken.items() if name in t}
        found = fit(list(own), list(own.values()))
        return found._asdict() if found else None

    def crossing(name: str) -> Row:
        both = {n: t for n, t in taken.items() if name in t}
        return crossover(
            {n: [a / b for a, b in zip(t[names[0]], t[name], strict=True)] for n, t in both.items()}
        )._asdict()

    return {
        "lengths": list(taken),
        "seconds": {name: [t.get(name) for t in taken.values()] for name in names},
        "exponent": {name: exponent(name) for name in names},
        "crossover": {name: crossing(name) for name in names[1:]},
    }
