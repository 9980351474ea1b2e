"""Printing to whatever stands at the other end: a terminal, a file, a pipe that closes, an ASCII console."""

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

DASH = "\N{EN DASH}"


def show(*parts: Any) -> None:
    """Print texts and rich tables; nothing is folded unless a terminal is too narrow."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    page = io.TextIOWrapper(io.BytesIO(), encoding=encoding(), errors="replace")  # rich would exit on a closed pipe
    width = shutil.get_terminal_size().columns if terminal else 1000
    console = Console(file=page, width=width, force_terminal=terminal, highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part)
    page.seek(0)
    sys.stdout.writelines(line.rstrip() + "\n" for line in page)


def show_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def encoding() -> str:
    return sys.stdout.encoding or "ascii"


def can_draw(characters: str) -> bool:
    try:
        characters.encode(encoding())
    except UnicodeEncodeError:
        return False
    return True


def yes_no(value: bool) -> str:
    yes, no = ("✓", DASH) if can_draw("✓" + DASH) else ("yes", "-")
    return yes if value else no


class Progress:
    """What is going on, on stderr: one line that changes on a terminal, else a line every few seconds."""

    def __init__(self, *, quiet: bool, every: float = 2.0) -> None:
        self.terminal, self.every, self.last = sys.stderr.isatty(), every, 0.0
        self.silent = quiet and not self.terminal

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        if self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def tell(self, text: str, left: float | None = None) -> None:
        """`left`: seconds until the end, where they are known."""
        if left is not None:
            text += f", {max(0, round(left))} s left"
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        elif not self.silent and monotonic() - self.last >= self.every:
            self.last = monotonic()
            print(text, file=sys.stderr, flush=True)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """A closed pipe (`anyformer list | head -1`) is no error."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at exit
