"""Run what is missing of a study and say what its claims come to; without a name, list the studies."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyformer.card import did_you_mean
from anyformer.cli._terminal import Progress, reader_may_leave, show, show_json
from anyformer.records import write_whole
from anyformer.studies import Row, Trial, names, study


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
        show_json(names()) if args.json else show(*(f"{name}  {about}" for name, about in names().items()))
        return 0
    for name in ("seeds", "jobs"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, not {getattr(args, name)}")
    chosen = study(args.name)
    if args.preset not in chosen.PRESETS:
        near = did_you_mean(args.preset, list(chosen.PRESETS))
        raise ValueError(f"{args.name} has no preset {args.preset!r}{near}; it has {', '.join(chosen.PRESETS)}")
    from anyformer.studies import _run

    path = args.record or Path("records") / f"{args.name}.jsonl"
    trials = chosen.trials(args.preset, args.seeds)
    done = _run.records(path, trials)
    todo = _run.missing(trials, done)
    expected = guesses(args, todo, done)
    if args.dry_run:
        return plan(args, todo, done, expected)
    failed: list[str] = []
    if todo:
        with Progress(quiet=args.json, every=10.0) as progress:
            try:
                work = args.work or Path(".anyformer") / args.name
                failed = _run.run(args.name, todo, path, work, args.jobs, expected, progress.tell)
            except KeyboardInterrupt:
                print("interrupted: what is done is kept; the same command goes on", file=sys.stderr)
                return 130
    for failure in failed:
        print(f"failed: {failure}", file=sys.stderr)
    done = _run.records(path, trials)
    answer(args, done, chosen.verdicts(done), failed)
    return 1 if failed else 0


def guesses(args: argparse.Namespace, todo: Sequence[Trial], done: Sequence[Row]) -> list[float]:
    """Seconds of each trial, as one of several workers would take."""
    import torch

    from anyformer.studies import _run

    threads = torch.get_num_threads()
    torch.set_num_threads(1 if args.jobs > 1 else threads)
    try:
        return _run.estimates(args.name, todo, done)
    finally:
        torch.set_num_threads(threads)


def plan(args: argparse.Namespace, todo: Sequence[Trial], done: Sequence[Row], expected: Sequence[float]) -> int:
    rows = [
        {"trial": t.what["trial"], "seed": t.seed, "seconds": round(s, 1)} for t, s in zip(todo, expected, strict=True)
    ]
    seconds = sum(s / (1 if t.alone else args.jobs) for t, s in zip(todo, expected, strict=True))
    if args.json:
        show_json({"done": len(done), "seconds": round(seconds), "trials": rows})
        return 0
    show(
        *(f"{row['seconds']:8.0f} s  {row['trial']} (seed {row['seed']})" for row in rows),
        f"{len(todo)} trials would run and {len(done)} are done: {seconds / 60:.0f} minutes with {args.jobs} jobs.",
        "A trial is taken to last as long as it did with another seed; else a few steps were measured now, or it is "
        "the most that it may take.",
    )
    return 0


def answer(args: argparse.Namespace, records: Sequence[Row], verdicts: Sequence[Row], failed: Sequence[str]) -> None:
    if args.html is not None:
        from anyformer.reports.studies import page

        write_whole(args.html, page(args.name, records, verdicts))
    with reader_may_leave():
        if args.json:
            show_json({"study": args.name, "preset": args.preset, "verdicts": list(verdicts), "failed": list(failed)})
        else:
            show(table(verdicts))
        sys.stdout.flush()


def table(verdicts: Sequence[Row]) -> Any:
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold", show_lines=False)
    for heading in ("claim", "verdict", "says", "claimed", "because"):
        drawn.add_column(heading, no_wrap=heading in ("claim", "verdict"))
    for row in verdicts:
        drawn.add_row(*(row[name] for name in ("claim", "verdict", "says", "claimed", "because")))
    return drawn
