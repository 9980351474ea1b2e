"""Make the page of one or more records of the referee: where each mechanism overtakes, in one HTML file."""

import argparse
from pathlib import Path
from typing import Any

from anyformer.cli._terminal import show, show_json
from anyformer.records import read, write_whole

Row = dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="+", type=Path, help="files that `anyformer crossover` wrote")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("crossover.html"), help="the page (default crossover.html)"
    )


def run(args: argparse.Namespace) -> int:
    from anyformer.reports.page import newest, render, summary

    for path in args.records:
        if args.output.exists() and path.exists() and args.output.samefile(path):
            raise ValueError(f"{args.output} holds records, which the page would replace: give -o another name")
    runs = newest([record for path in args.records for record in records(path)])
    page = render(runs)
    try:
        write_whole(args.output, page)
    except OSError as error:
        raise ValueError(f"{args.output} cannot be written: {error.strerror}; give -o another place") from None
    found = [summary(record) for record in runs]
    if args.json:
        show_json({"page": str(args.output), "runs": found})
    else:
        show(*(run["headline"] for run in found), f"the page: {args.output}")
    return 0


def records(path: Path) -> list[Row]:
    try:
        return read(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
