"""Fetch a data set, check that it is the real one, and store it; without a name, list them."""

import argparse
import ast
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from anyformer.card import did_you_mean
from anyformer.cli import about
from anyformer.cli._terminal import Progress, show, show_json

FIGURES = (".png", ".svg")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the data set")
    parser.add_argument(
        "--from",
        type=Path,
        dest="source",
        metavar="DIR",
        help="a folder or archive of its files, instead of the network",
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="where to store it (default: in the user's cache)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw its first images, as .png or .svg")


def run(args: argparse.Namespace) -> int:
    found = data_sets()
    if args.name is None:
        if (args.source, args.to, args.figure) != (None, None, None):
            raise ValueError(f"--from, --to and --figure need the name of a data set: {', '.join(found)}")
        rows = [{"name": name, "about": about(path)} for name, path in found.items()]
        if args.json:
            show_json(rows)
        else:
            show(*(f"{row['name']}  {row['about']}" for row in rows))
        return 0
    if args.name not in found:
        raise ValueError(
            f"there is no data set {args.name!r}{did_you_mean(args.name, found)}; there are {', '.join(found)}"
        )
    if args.figure is not None and args.figure.suffix not in FIGURES:
        raise ValueError(f"--figure takes a file that ends in {' or '.join(FIGURES)}, not {args.figure}")
    get(importlib.import_module(f"anyformer.data.{args.name}"), args)
    return 0


def get(data_set: ModuleType, args: argparse.Namespace) -> None:
    from anyformer.data import cache

    folder = cache(args.name) if args.to is None else args.to
    with Progress(quiet=args.json) as progress:
        origin = data_set.fetch(folder, args.source, progress.tell)
    if args.figure is not None:
        draw(data_set, folder, args.figure)
    parts = data_set.summary(folder)
    if args.json:
        figure = None if args.figure is None else str(args.figure)
        show_json({"name": args.name, "folder": str(folder), "origin": origin, "parts": parts, "figure": figure})
        return
    show(f"{args.name} is in {folder}, from {origin}")
    for part in parts:
        counts = sorted(set(part["of_each_class"].values()))
        show(f"{part['part']}: {part['images']:,} images, {' to '.join(f'{n:,}' for n in counts)} of each class")


def draw(data_set: ModuleType, folder: Path, path: Path) -> None:
    from anyformer.data import write
    from anyformer.reports.figures import extra

    with extra():
        import matplotlib.style
        from matplotlib.figure import Figure

    with matplotlib.style.context(["default", {"svg.hashsalt": "data"}], after_reset=True):
        figure = Figure(figsize=(10, 2.8), layout="constrained")
        data_set.draw(figure, folder)
        date: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
        write(path, lambda file: figure.savefig(file, format=path.suffix[1:], metadata=date))


def data_sets() -> dict[str, Path]:
    """Name -> file, of those with a function that fetches."""
    package = Path(__file__).parent.parent / "data"
    return {path.stem: path for path in sorted(package.glob("[!_]*.py")) if fetches(path)}


def fetches(path: Path) -> bool:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(isinstance(node, ast.FunctionDef) and node.name == "fetch" for node in body)
