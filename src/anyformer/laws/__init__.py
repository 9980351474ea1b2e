"""What every mechanism must obey, whatever its card claims; they run on anybody's module too.

Each law is a file with `claimed(subject)` and `check(subject)`, which raises AssertionError.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from anyformer.card import did_you_mean
from anyformer.laws import batch, causal, copies, cost, formula, limit, numbers, padding, stream, strict
from anyformer.laws.subject import Quick, Subject, catalogued, foreign, poisoned

__all__ = ["LAWS", "Outcome", "Quick", "Subject", "catalogued", "foreign", "judge"]

LAWS = {
    law.__name__.rpartition(".")[2]: law
    for law in (formula, causal, padding, stream, batch, limit, cost, numbers, strict, copies)
}


class Outcome(NamedTuple):
    mechanism: str
    law: str
    status: Literal["pass", "fail", "not claimed"]
    note: str


def judge(subject: Subject, laws: Sequence[str] | None = None) -> Iterator[Outcome]:
    """The outcome of each law, one after the other."""
    for name in LAWS if laws is None else laws:
        if name not in LAWS:
            raise ValueError(f"there is no law {name!r}{did_you_mean(name, LAWS)}; the laws are {', '.join(LAWS)}")
        yield verdict(subject, name)


def verdict(subject: Subject, name: str) -> Outcome:
    if not LAWS[name].claimed(subject):
        return Outcome(subject.name, name, "not claimed", "")
    try:
        with poisoned(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            LAWS[name].check(subject)
    except AssertionError as broken:
        return Outcome(subject.name, name, "fail", str(broken))
    except Exception as crash:
        return Outcome(subject.name, name, "fail", f"crashed: {type(crash).__name__}: {crash}")
    return Outcome(subject.name, name, "pass", "")
