"""Studies: one file, one question: what is claimed, the trials that tell, and the verdicts they come to.

A study's file has `CLAIMS`, `PRESETS`, `trials(preset, seeds)`, `run(what, seed, folder)`, `seconds(what)` and
`verdicts(records)`; it is found by its name. Files whose name starts with an underscore are no studies.
"""

import ast
import importlib
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

from anyformer.card import did_you_mean

Row = dict[str, Any]
Word = Literal["reproduced", "refuted", "inconclusive"]
Verdict = tuple[Word, str]  # and why, with the numbers
SEEDS = 2  # the fewest that have an interval


class Claim(NamedTuple):
    id: str
    document: str  # where it was found
    says: str  # in our words
    claimed: str  # the figure
    decided_by: Callable[[Row], bool]  # the trials that tell, by what they are
    judge: Callable[[Sequence[Row]], Verdict]  # their records, all of them with each seed


class Trial(NamedTuple):
    """One run with one seed; `what` is all that decides its outcome.

    "trial" in it names it for readers, from the general to the particular: "fresh, linear, length 8".
    """

    what: Row
    seed: int

    @property
    def key(self) -> str:
        return json.dumps([self.what, self.seed], sort_keys=True)

    @property
    def name(self) -> str:
        return f"{self.what['trial']} (seed {self.seed})"

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

    def seconds(self, what: Row) -> tuple[float, str]:
        """How long a trial will take here, and how that is known."""

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
    """The newest finished record of each trial."""
    rows = [r for r in records if (r.get("kind"), r.get("status")) == ("study", "done")]
    return list({Trial(r["what"], r["seed"]).key: r for r in rows}.values())


def judged(claims: Sequence[Claim], records: Sequence[Row], trials: Callable[[str, int], list[Trial]]) -> list[Row]:
    """The verdicts on claims; records must be of one study and preset.

    A claim is judged by the seeds of which all its trials have finished. They must be SEEDS at least, unless it has
    trials with a single seed only.
    """
    records = finished(records)
    of = {(r["what"]["study"], r["what"]["preset"]) for r in records}
    if len(of) > 1:
        raise ValueError("these records are of several presets, which tell different things: judge one at a time")
    wanted = trials(of.pop()[1], max(SEEDS, *(r["seed"] + 1 for r in records))) if of else []
    there = {Trial(r["what"], r["seed"]).key: r for r in records}
    found = []
    for claim in claims:
        own = [trial for trial in wanted if claim.decided_by(trial.what)]
        missing = [trial for trial in own if trial.key not in there]
        whole = {trial.seed for trial in own} - {trial.seed for trial in missing}
        deciding = [there[trial.key] for trial in own if trial.seed in whole]
        verdict: str
        if not own or len(whole) < min(SEEDS, len({trial.seed for trial in own})):
            verdict, because = "not measured", lacking(missing)
        else:
            verdict, because = claim.judge(deciding)
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


def lacking(missing: Sequence[Trial]) -> str:
    if not missing:
        return "none of its trials has finished"
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f"not finished: {'; '.join(trial.name for trial in missing[:3])}{more}"
