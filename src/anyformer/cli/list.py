"""Every mechanism and what its card says it can do."""

import argparse
from dataclasses import asdict
from typing import Any

from anyformer.card import Card, did_you_mean, entries
from anyformer.cli._terminal import show, show_json, yes_no
from anyformer.reports.cards import order, rows, short_paper


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--idea", help="only the mechanisms of one idea, such as kernel")


def run(args: argparse.Namespace) -> int:
    found = {entry.name: (entry.idea, entry.card) for entry in entries().values()}
    ideas = sorted({idea for idea, _ in found.values()})
    if args.idea is not None and args.idea not in ideas:
        raise ValueError(
            f"there is no idea {args.idea!r}{did_you_mean(args.idea, ideas)}; the ideas are {', '.join(ideas)}"
        )
    found = {name: about for name, about in found.items() if args.idea in (None, about[0])}
    if args.json:
        show_json([as_json(name, idea, card) for name, (idea, card) in found.items()])
    else:
        show(table(found))
    return 0


def as_json(name: str, idea: str, card: Card) -> dict[str, Any]:
    """The card as written, and the facts of each variant where they differ from it."""
    facts = asdict(card)
    variants = {
        variant: {"options": options, "facts": card.overrides.get(variant, {})}
        for variant, options in facts.pop("variants").items()
    }
    del facts["overrides"]
    return {"name": name, "idea": idea, **facts, "variants": variants}


def table(found: dict[str, tuple[str, Card]]) -> Any:
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "variants", "idea", "paper", "causal", "cross", "padding", "stream", "time", "memory"):
        drawn.add_column(heading, no_wrap=heading not in ("variants", "paper"))
    for name, (idea, card) in found.items():
        for spec, facts in rows(name, card):
            drawn.add_row(
                spec,
                ", ".join(card.variants) if spec == name else "",
                idea,
                short_paper(facts),
                facts.causal,
                yes_no(facts.cross),
                yes_no(facts.padding),
                facts.stream,
                order(facts.time),
                order(facts.memory),
            )
    return drawn
