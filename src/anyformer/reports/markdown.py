"""Text as Markdown."""

import re
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def plain(text: str) -> str:
    """A sentence that says the same in Markdown."""
    return re.sub(r"([*<\[\]])", r"\\\1", text)


def linked(text: str) -> str:
    """A paper, with a link where its number leads to one."""
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", plain(text))


def code(text: str) -> str:
    return f"`{text}`"


def number(value: float) -> str:
    """Two or three digits."""
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
