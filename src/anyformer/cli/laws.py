"""Judge mechanisms, or any module of yours, by the laws; exit status 1 when one fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anyformer.card import did_you_mean, find, mechanisms, specs
from anyformer.cli._terminal import DASH, can_draw, reader_may_leave, show, show_json

if TYPE_CHECKING:
    from anyformer.laws import Outcome, Subject


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="*",
        help="a mechanism (all its variants), name:variant, or package.module:factory; none means every mechanism",
    )
    parser.add_argument("--law", action="append", metavar="NAME", help="only this law; may be repeated")
    claims = parser.add_argument_group("claims of package.module:factory")
    claims.add_argument("--dim", type=int, help="width of the tokens that its layer takes (default 16)")
    claims.add_argument("--causal", action="store_true", help="it is causal")
    claims.add_argument("--cross", action="store_true", help="it takes a context")
    claims.add_argument("--padding", action="store_true", help="it takes keep masks")


def run(args: argparse.Namespace) -> int:
    from anyformer.laws import LAWS, judge

    laws = list(LAWS)
    for name in args.law or []:
        if name not in laws:
            raise ValueError(f"there is no law {name!r}{did_you_mean(name, laws)}; the laws are {', '.join(laws)}")
    laws = [name for name in laws if args.law is None or name in args.law]
    claims = {name: getattr(args, name) for name in ("dim", "causal", "cross", "padding") if getattr(args, name)}
    outcomes: list[Outcome] = []
    interrupted = False
    try:
        named = subjects(args.target, claims)
        with progress(len(named) * len(laws), quiet=args.json) as told:
            for subject in named:
                for outcome in judge(subject, laws):
                    outcomes.append(outcome)
                    told(outcome)
    except KeyboardInterrupt:
        interrupted = True
    with reader_may_leave():  # and the verdict stands
        if args.json:
            show_json([outcome._asdict() for outcome in outcomes])
        else:
            show(*report(outcomes, laws))
        sys.stdout.flush()
    if interrupted:
        return 130
    return 1 if any(outcome.status == "fail" for outcome in outcomes) else 0


def subjects(targets: Sequence[str], claims: dict[str, Any]) -> list[Subject]:
    """What to judge."""
    from anyformer.laws import catalogued, foreign

    known = mechanisms()
    found: list[Subject] = []
    any_foreign = False
    for target in targets or specs():
        name, colon, _ = target.partition(":")
        if colon and name not in known:
            any_foreign = True
            try:
                found.append(foreign(target, **claims))
            except ValueError as error:
                raise ValueError(f"{error}{did_you_mean(name, known)}") from None
        elif colon:
            found.append(catalogued(target))
        else:
            find(name)
            found += [catalogued(spec) for spec in specs() if spec.partition(":")[0] == name]
    if claims and not any_foreign:
        given = ", ".join(f"--{name}" for name in claims)
        raise ValueError(f"{given} describes package.module:factory; a mechanism's claims are on its card")
    return found


@contextmanager
def progress(total: int, *, quiet: bool) -> Iterator[Callable[[Outcome], None]]:
    """On stderr: a bar on a terminal, else a line for each verdict unless quiet."""
    if not sys.stderr.isatty():

        def told(outcome: Outcome) -> None:
            if not quiet:
                print(f"{outcome.mechanism}  {outcome.law}  {outcome.status}", file=sys.stderr, flush=True)

        yield told
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def told_bar(outcome: Outcome) -> None:
            bar.update(task, advance=1, description=f"{outcome.mechanism}  {outcome.law}  {outcome.status}")

        yield told_bar


def report(outcomes: Iterable[Outcome], laws: Sequence[str]) -> list[Any]:
    """The capability table, and what went wrong beneath it."""
    from rich.table import Table

    marks = {"pass": "✓", "fail": "✗", "not claimed": DASH}
    if not can_draw("".join(marks.values())):
        marks = {"pass": "yes", "fail": "FAIL", "not claimed": "-"}
    judged: dict[str, dict[str, str]] = {}
    failures = []
    for outcome in outcomes:
        judged.setdefault(outcome.mechanism, {})[outcome.law] = outcome.status
        if outcome.status == "fail":
            failures.append(f"{outcome.mechanism}: {outcome.law}: {outcome.note}")
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column("mechanism", no_wrap=True)
    for law in laws:
        drawn.add_column(law, justify="center", no_wrap=True)
    for mechanism, verdicts in judged.items():
        drawn.add_row(mechanism, *(marks[verdicts[law]] if law in verdicts else "" for law in laws))
    key = f"{marks['pass']} passes   {marks['fail']} fails   {marks['not claimed']} not claimed"
    return [drawn, key, *([""] if failures else []), *failures]
