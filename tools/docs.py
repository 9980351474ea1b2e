"""Write the generated parts of the documentation, or check with --check that they are up to date.

The tables of README.md stand between `<!-- generated: NAME -->` and `<!-- end -->`; docs/mechanisms.md and
docs/bench.md are generated whole, and docs/crossover.svg is its picture. The sources are the cards, read without torch,
and records/*.jsonl.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyformer import cli
from anyformer.card import entries
from anyformer.records import read
from anyformer.reports import bench, cards, crossings, figures
from anyformer.reports.markdown import code, table

ROOT = Path(__file__).parent.parent
RECORDS = Path("records")


def texts(root: Path) -> dict[Path, str]:
    """What each file should hold."""
    found = entries()
    record = bench.newest(records(root, "bench"))
    crossing, before = crossings.newest(records(root, "crossover"))
    parts = {
        "capabilities": cards.capabilities(found),
        "speed": bench.summary(record),
        "verbs": verbs(),
        "crossover": crossings.summary(crossing, before),
    }
    readme = root / "README.md"
    wanted = {
        readme: filled(readme.read_text(encoding="utf-8"), parts),
        root / "docs" / "mechanisms.md": cards.page(found),
        root / "docs" / "bench.md": bench.page(record),
    }
    if crossing is not None:
        wanted[root / "docs" / "crossover.svg"] = figures.crossing(crossing)
    return wanted


def records(root: Path, kind: str) -> list[dict[str, Any]]:
    path = root / RECORDS / f"{kind}.jsonl"
    return read(path) if path.exists() else []


def verbs() -> str:
    return table(
        ("verb", "what it does"), [(code(f"anyformer {name}"), cli.about(path)) for name, path in cli.verbs().items()]
    )


def filled(text: str, parts: dict[str, str]) -> str:
    """The text with each part between its markers."""
    for name, part in parts.items():
        start, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
        before, _, rest = text.partition(start)
        old, closed, after = rest.partition(end)
        if text.count(start) != 1 or not closed or "<!--" in old:
            raise ValueError(f"README.md must hold the line {start.strip()} once, and then the line {end}")
        text = f"{before}{start}{part}\n{end}{after}"
    return text


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """0: done; 1: something is stale; 2: a source or the README cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a file is stale")
    args = parser.parse_args(argv)
    try:
        wanted = texts(root)
        stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        names = ", ".join(str(path.relative_to(root)) for path in stale)
        if args.check and stale:
            print(f"stale: {names}; run `make docs` and commit what it writes", file=sys.stderr)
            return 1
        if not args.check:
            for path in stale:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(wanted[path], encoding="utf-8")
            print(f"written: {names}" if stale else "everything is up to date")
    except (ValueError, OSError) as error:
        print("docs: error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
