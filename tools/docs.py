"""Write the generated parts of the documentation, or check with --check that they are up to date.

The tables of README.md stand between `<!-- generated: NAME -->` and `<!-- end -->`; docs/mechanisms.md and
docs/bench.md are generated whole, and docs/crossover.svg is its picture. The sources are the cards, read without torch,
and records/*.jsonl. A study that has records has docs/studies/NAME.md and its pictures; its verdicts take torch.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyformer import cli, studies
from anyformer.card import entries
from anyformer.records import latest, read
from anyformer.reports import bench, cards, crossings, figures
from anyformer.reports import studies as study_pages
from anyformer.reports.markdown import code, plain, table
from anyformer.studies import _run

Row = dict[str, Any]

ROOT = Path(__file__).parent.parent
RECORDS = Path("records")
MODELS = RECORDS / "bench_models.jsonl"


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
    studied = {name: judged(root / RECORDS / f"{name}.jsonl", name) for name in studies.names()}
    parts["verdicts"] = "\n\n".join(verdicts(said) for _, said in studied.values() if said)
    readme = root / "README.md"
    wanted = {
        readme: filled(readme.read_text(encoding="utf-8"), parts),
        root / "docs" / "mechanisms.md": cards.page(found),
        root / "docs" / "bench.md": f"{bench.page(record)}\n{bench.models(latest(root / MODELS, 'bench models'))}",
    }
    if crossing is not None:
        wanted[root / "docs" / "crossover.svg"] = figures.crossing(crossing)
    for name, (kept, said) in studied.items():
        if kept:
            files = study_pages.markdown(name, kept, said)
            wanted |= {root / "docs" / "studies" / file: text for file, text in files.items()}
    return wanted


def judged(path: Path, name: str) -> tuple[list[Row], list[Row]]:
    """Finished trials and verdicts: of the presets, which have answers of their own, the one with the most trials."""
    if not path.exists():
        return [], []
    done, chosen = studies.finished(read(path)), studies.study(name)
    presets = Counter(record["what"]["preset"] for record in done if record["what"]["preset"] in chosen.PRESETS)
    seeds = max((record["seed"] for record in done), default=0) + 1
    kept = [r for preset, _ in presets.most_common(1) for r in _run.records(path, chosen.trials(preset, seeds))]
    return kept, chosen.verdicts(kept)


def verdicts(said: Sequence[Row]) -> str:
    return table(
        ("claim", "figure claimed", "verdict"),
        [(plain(f"{v['claim']}. {v['says']}"), plain(v["claimed"]), f"**{v['verdict']}**") for v in said],
    )


def records(root: Path, kind: str) -> list[Row]:
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
