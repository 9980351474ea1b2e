"""Run what is missing of a study and say what its claims come to; without a name, list the studies."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from anyformer.card import did_you_mean
from anyformer.cli._arguments import require_folder, require_report, require_writable
from anyformer.cli._terminal import Progress, reader_may_leave, show, show_json
from anyformer.records import write_whole
from anyformer.studies import Row, Trial, names, study

Guess = tuple[float, str]  # the seconds of a trial, and how they are known


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", nargs="?", help="of a study")
    add("--preset", default="laptop", help="how large everything is: smoke, laptop (default) or paper")
    add("--seeds", type=int, default=3, help="how many (default 3)")
    add("--jobs", type=int, default=2, help="trainings at once, each with one thread (default 2); 1 has all threads")
    add("--record", type=Path, metavar="F", help="where records are and go (default records/NAME.jsonl)")
    add("--work", type=Path, metavar="DIR", help="where checkpoints are and go (default .anyformer/NAME)")
    add("--dry-run", action="store_true", help="only say what would run, and for how long")
    add("--html", type=Path, metavar="F", help="write a page to F")


def run(args: argparse.Namespace) -> int:
    """0: done; 1: a trial failed; 130: interrupted."""
    if args.name is None:
        if args.record or args.work or args.html or args.dry_run:
            raise ValueError(f"--record, --work, --html and --dry-run need the name of a study: {', '.join(names())}")
        show_json(names()) if args.json else show(*(f"{name}  {about}" for name, about in names().items()))
        return 0
    for name in ("seeds", "jobs"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, not {getattr(args, name)}")
    chosen = study(args.name)
    if args.preset not in chosen.PRESETS:
        near = did_you_mean(args.preset, list(chosen.PRESETS))
        raise ValueError(f"{args.name} has no preset {args.preset!r}{near}; it has {', '.join(chosen.PRESETS)}")
    path, work = args.record or Path("records") / f"{args.name}.jsonl", args.work or Path(".anyformer") / args.name
    require_writable(path)
    require_folder(work)
    require_writable(args.html)
    if args.html is not None:
        require_report("--html")
    from anyformer.studies import _run

    trials = chosen.trials(args.preset, args.seeds)
    done = _run.records(path, trials)
    todo = _run.missing(trials, done)
    failed: list[str] = []
    if todo or args.dry_run:
        try:
            with Progress(quiet=args.json, every=10.0) as progress:
                progress.tell("estimating how long it will take")
                expected = guesses(args, todo, done)
                if not args.dry_run:
                    seconds = [guess for guess, _ in expected]
                    failed = _run.run(args.name, todo, path, work, args.jobs, seconds, progress.tell)
        except KeyboardInterrupt:
            print("interrupted: what is done is kept; the same command goes on", file=sys.stderr)
            return 130
    if args.dry_run:
        plan(args, todo, done, expected)
        return 0
    for failure in failed:
        print(f"failed: {failure}", file=sys.stderr)
    done = _run.records(path, trials)
    answer(args, done, chosen.verdicts(done), failed)
    return 1 if failed else 0


def guesses(args: argparse.Namespace, todo: Sequence[Trial], done: Sequence[Row]) -> list[Guess]:
    """What each trial takes, as one of several workers."""
    import torch

    from anyformer.studies import _run

    threads = torch.get_num_threads()
    torch.set_num_threads(1 if args.jobs > 1 else threads)
    try:
        return _run.estimates(args.name, todo, done)
    finally:
        torch.set_num_threads(threads)


def plan(args: argparse.Namespace, todo: Sequence[Trial], done: Sequence[Row], expected: Sequence[Guess]) -> None:
    rows = [
        {"trial": trial.what["trial"], "seed": trial.seed, "seconds": round(seconds, 1), "source": source}
        for trial, (seconds, source) in zip(todo, expected, strict=True)
    ]
    total = sum(s / (1 if t.alone else args.jobs) for t, (s, _) in zip(todo, expected, strict=True))
    if args.json:
        show_json({"done": len(done), "seconds": round(total), "trials": rows})
        return
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("trials", "seconds", "kind", "source"):
        drawn.add_column(heading, justify="right" if heading in ("trials", "seconds") else "left")
    kinds: dict[tuple[str, str], list[float]] = {}
    for trial, (seconds, source) in zip(todo, expected, strict=True):
        kinds.setdefault((", ".join(trial.what["trial"].split(", ")[:2]), source), []).append(seconds)
    for (kind, source), taken in kinds.items():
        drawn.add_row(str(len(taken)), f"{sum(taken):.0f}", kind, source)
    left = timedelta(seconds=round(total))
    show(
        *([drawn] if rows else []),
        f"{len(todo)} trials would run and {len(done)} are done: {left} with {args.jobs} jobs.",
    )


def answer(args: argparse.Namespace, records: Sequence[Row], verdicts: Sequence[Row], failed: Sequence[str]) -> None:
    if args.html is not None:
        from anyformer.reports.studies import page

        write_whole(args.html, page(args.name, records, verdicts))
    with reader_may_leave():
        if args.json:
            show_json({"study": args.name, "preset": args.preset, "verdicts": list(verdicts), "failed": list(failed)})
        else:
            show(*(part for row in verdicts for part in block(row)), summary(args, verdicts))
        sys.stdout.flush()


def block(row: Row) -> list[Any]:
    """A claim, its verdict and why."""
    from rich.padding import Padding
    from rich.text import Text

    said = f"{row['says']} ({row['document']}: {row['claimed']})"
    return [
        Text(f"{row['claim']}  {row['verdict']}", style="bold"),
        *(Padding(Text(text), (0, 0, 0, 4)) for text in (said, row["because"])),
        "",
    ]


def summary(args: argparse.Namespace, verdicts: Sequence[Row]) -> str:
    counts = Counter(row["verdict"] for row in verdicts)
    return f"{args.name}, preset {args.preset}: " + ", ".join(f"{count} {word}" for word, count in counts.items())
