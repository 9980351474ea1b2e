"""How far a run is, on stderr: a bar on a terminal, else a line every few seconds."""

from datetime import timedelta
from time import perf_counter
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

SECONDS = 5.0  # between two lines


class Shown:
    """To be used in a `with`; `done` of the `steps` were done before this run of the program."""

    def __init__(self, *, done: int, steps: int, unit: str, quiet: bool) -> None:
        self.done, self.steps, self.unit = done, steps, unit
        self.console = Console(stderr=True, quiet=quiet, highlight=False, markup=False, emoji=False, soft_wrap=True)
        columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
        self.bar = Progress(*columns, console=self.console, disable=quiet or not self.console.is_terminal)
        self.row = self.bar.add_task("", total=steps, completed=done)
        self.began = self.told = perf_counter()
        self.count = 0.0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def step(self, step: int, loss: float, count: float) -> None:
        """After a step that counted so many units."""
        now = perf_counter()
        self.count += count
        seconds = max(now - self.began, 1e-9)
        left = timedelta(seconds=round(seconds / (step - self.done) * (self.steps - step)))
        news = f"loss {loss:.4g}, {self.count / seconds:,.0f} {self.unit}/s, {left} left"
        self.bar.update(self.row, completed=step, description=news)
        if self.bar.disable and (now - self.told >= SECONDS or step == self.steps):
            self.told = now
            self.say(f"step {step}/{self.steps}: {news}")

    def say(self, text: str) -> None:
        self.console.print(text)
