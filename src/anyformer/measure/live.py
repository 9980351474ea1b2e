"""The machine that the referee measures on."""

from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from anyformer.measure.contenders import Contender, Sizes, contender, floor
from anyformer.measure.floor import Limits
from anyformer.measure.load import disturbed, others, reading
from anyformer.measure.memory import high_water_bytes
from anyformer.measure.referee import Cell
from anyformer.measure.time import SHORTEST, rounds, sample

MOST_ROUNDS = 25
SHOWS = 32 << 20  # bytes from which the process's own high-water mark tells something


class Live:
    """Builds the contenders of one cell at a time and times them."""

    def __init__(self, sizes: Sizes, limits: Limits, tell: Callable[[str, float], None]) -> None:
        self.sizes, self.limits, self.tell = sizes, limits, tell
        self.floors: dict[str, dict[str, float]] = {}
        self.high_water: dict[str, dict[str, int]] = {}
        self.disturbed = False
        self.built: tuple[Cell, dict[str, Contender]] | None = None

    def clock(self) -> float:
        return perf_counter()

    def contender(self, cell: Cell, name: str) -> Contender:
        if self.built is None or self.built[0] != cell:
            self.built = cell, {}
        _, made = self.built
        if name not in made:
            field = cell.field
            mode = field.mode.removesuffix(" memory")
            made[name] = contender(name, field.level, mode, field.causal, cell.length, self.sizes)
        return made[name]

    def probe(self, cell: Cell, name: str) -> float:
        entrant = self.contender(cell, name)
        if cell.field.memory:
            began = perf_counter()
            entrant.run()
            return perf_counter() - began
        if entrant.before:
            entrant.before()
        return max(SHORTEST, min(sample(entrant.run, 1), sample(entrant.run, 1)))  # the first call of all is slower

    def measure(self, cell: Cell, names: Sequence[str], seconds: float, at_least: int) -> dict[str, list[float]]:
        entrants = {name: self.contender(cell, name) for name in names}
        title = cell.field.cell(cell.length)
        if cell.field.memory:
            self.disturbed = False
            taken = {name: [float(max(1, entrant.held()))] for name, entrant in entrants.items()}
            if cell.field.mode != "decode memory":
                self.check_memory(title, entrants, taken)
            return taken
        least = {name: floor(entrant, self.limits) for name, entrant in entrants.items()}
        self.floors[title] = {name: value for name, value in least.items() if value}
        before = reading()
        taken = rounds(
            {name: entrant.run for name, entrant in entrants.items()},
            seconds=seconds,
            at_least=at_least,
            at_most=max(MOST_ROUNDS, at_least),
            before={name: entrant.before for name, entrant in entrants.items() if entrant.before},
            most_calls=max(8, cell.length // 16) if cell.field.mode == "decode" else 1 << 20,
        )
        self.disturbed = disturbed(others(before, reading()), torch.get_num_threads())
        return taken

    def check_memory(self, title: str, entrants: dict[str, Contender], taken: dict[str, list[float]]) -> None:
        """The same peaks as the process itself sees them, where they are large enough to show."""
        for name, entrant in entrants.items():
            if taken[name][0] >= SHOWS and (seen := high_water_bytes(entrant.run)) is not None:
                self.high_water.setdefault(title, {})[name] = seen
