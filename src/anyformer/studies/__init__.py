"""Studies: one file, one question: what is claimed, the trials that tell, and the verdicts they come to.

A study's file has `CLAIMS`, `PRESETS`, `trials(preset, seeds)`, `run(what, seed, folder)`, `seconds(what)` and
`verdicts(records)`; it is found by its name. Files whose name starts with an underscore are no studies.
"""

import ast
import importlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

from anyformer.card import did_you_mean

Row = dict[str, Any]
Word = Literal["reproduced", "refuted", "inconclusive"]
Verdict = tuple[Word, str]  # and why, with the numbers


class Claim(NamedTuple):
    id: str
    document: str  # where it was found
    says: str  # in our words
    claimed: str  # the figure
    decided_by: Callable[[Row], bool]  # the trials that tell, by what they are
    judge: Callable[[Sequence[Row]], Verdict | None]  # their records -> a verdict; None if too few of them are there


class Trial(NamedTuple):
    """One run with one seed; `what` is all that decides its outcome, and "trial" in it names it for readers."""

    what: Row
    seed: int

    @property
    def alone(self) -> bool:
        """Whether it measures time, which no other trial may disturb."""
        return bool(self.what["part"] == "timing")


class Study(Protocol):
    CLAIMS: Sequence[Claim]
    PRESETS: Collection[str]

    def trials(self, preset: str, seeds: int) -> list[Trial]:
        """All of them, in the order in which they should run."""

    def run(self, what: Row, seed: int, folder: Path) -> Row:
        """Results of a trial; it goes on from what it left in the folder, if it was stopped before."""

    def seconds(self, what: Row) -> float:
        """How long a trial will take here, from a quick measurement."""

    def verdicts(self, records: Sequence[Row]) -> list[Row]:
        """One for each claim."""


def names() -> dict[str, str]:
    """Every study and the first line of its docstring, without importing it."""
    return {
        path.stem: (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        for path in sorted(Path(__file__).parent.glob("[!_]*.py"))
    }


def study(name: str) -> Study:
    if name not in names():
        raise ValueError(f"there is no study {name!r}{did_you_mean(name, names())}; there are {', '.join(names())}")
    return cast(Study, importlib.import_module(f"anyformer.studies.{name}"))


def finished(records: Sequence[Row]) -> list[Row]:
    """The newest finished record of each trial and seed."""
    newest = {(r["what"]["trial"], r["seed"]): r for r in records if r.get("kind") == "study" and r["status"] == "done"}
    return list(newest.values())


def judged(claims: Sequence[Claim], records: Sequence[Row]) -> list[Row]:
    """The verdicts on claims; records must be of one study and preset."""
    records = finished(records)
    if len({(r["what"]["study"], r["what"]["preset"]) for r in records}) > 1:
        raise ValueError("these records are of several presets, which tell different things: judge one at a time")
    found = []
    for claim in claims:
        deciding = [r for r in records if claim.decided_by(r["what"])]
        verdict, because = claim.judge(deciding) or ("not measured", "its trials have not run, or not all of them")
        found.append(
            {
                **{name: getattr(claim, name) for name in ("document", "says", "claimed")},
                "claim": claim.id,
                "verdict": verdict,
                "because": because,
                "records": list(dict.fromkeys(r["what"]["trial"] for r in deciding)),
            }
        )
    return found
