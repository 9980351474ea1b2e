"""One mechanism: its idea, paper, formula, options, and the attention matrix that it amounts to."""

import argparse
import inspect
from dataclasses import asdict
from typing import Any

from anyformer.card import Card, Entry, find
from anyformer.cli._arguments import option
from anyformer.cli._example import Matrix, example_options, matrix
from anyformer.cli._terminal import can_draw, show, show_json
from anyformer.reports.cards import keywords, read_docstring, remarks, streams


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mechanism", help="name or name:variant")
    parser.add_argument("--tokens", type=int, help="length of the example (default 20)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the core, such as window=4"
    )


def run(args: argparse.Namespace) -> int:
    entry, variant = find(args.mechanism)
    card = entry.card.of(variant)
    if card.slot != "attention" and (args.tokens is not None or args.set):
        raise ValueError(f"{entry.name} has no queries and keys, so no matrix to draw with --tokens or --set")
    if args.tokens is not None and args.tokens < 1:
        raise ValueError(f"--tokens must be at least 1, not {args.tokens}")
    options = example_options(card, entry.card.variants.get(variant or "", {}), args.tokens)
    options |= dict(option(text, ("causal", "heads", "head_dim")) for text in args.set)
    tokens = args.tokens or min(20, options.get("max_length", 20))
    matrices = {
        "causal" if causal else "not causal": matrix(args.mechanism, causal, tokens, options)
        for causal in (False, True)
        if card.slot == "attention" and card.causal in ("option", "only" if causal else "no")
    }
    facts = asdict(card)
    sections = read_docstring(entry.docstring)
    about = {
        "name": entry.name,
        "variant": variant,
        "idea": entry.idea,
        **sections,
        "options": constructor_options(args.mechanism, card),
        "variants": facts.pop("variants"),
        "limits": facts.pop("limits"),
        "facts": {name: fact for name, fact in facts.items() if name != "overrides"},
        "example": {"tokens": tokens, "options": options} if matrices else None,
        "matrices": matrices,
    }
    if args.json:
        show_json(about)
    else:
        show(*page(entry, about))
    return 0


# The facts


def constructor_options(spec: str, card: Card) -> dict[str, dict[str, Any]]:
    """Name -> type and default; those of `build` that the core does not know are marked with `layer`."""
    from anyformer.catalog import mechanism
    from anyformer.contract import AttentionLayer

    found = {name: describe(p, layer=False) for name, p in inspect.signature(mechanism(spec)).parameters.items()}
    if card.slot == "attention":
        layer = inspect.signature(AttentionLayer).parameters.items()
        found |= {name: describe(p, layer=True) for name, p in layer if name != "core"}
    return found


def describe(parameter: inspect.Parameter, *, layer: bool) -> dict[str, Any]:
    required = parameter.default is parameter.empty
    kind = parameter.annotation
    return {
        "type": kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", ""),
        "required": required,
        "default": None if required else parameter.default,
        "layer": layer,
    }


# The page


def page(entry: Entry, about: dict[str, Any]) -> list[Any]:
    from rich.columns import Columns
    from rich.panel import Panel
    from rich.table import Table

    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for heading in ("paper", "formula", "symbols", "shapes", "differs"):
        if about[heading]:
            facts.add_row(heading, about[heading])
    card = entry.card.of(about["variant"])
    facts.add_row("causal", card.causal)
    facts.add_row("cross", "yes" if card.cross else "no")
    facts.add_row("padding", "yes" if card.padding else "no")
    facts.add_row("stream", streams(card))
    facts.add_row("cost", f"time ~ N^{card.time:g}, memory ~ N^{card.memory:g}")
    if remarks(card):
        facts.add_row("also", "; ".join(remarks(card)))
    for heading, layer in (("options", False), ("layer options", True)):
        facts.add_row(heading, ", ".join(as_code(n, o) for n, o in about["options"].items() if o["layer"] is layer))
    for name, options in about["variants"].items():
        facts.add_row(f"{entry.name}:{name}", keywords(options))
    for limit in about["limits"]:
        facts.add_row("limit", f"equals softmax with {keywords(limit)}")

    named = entry.name + (f":{about['variant']}" if about["variant"] else "")
    parts: list[Any] = [f"{named} ({entry.idea}): {card.title}", about["summary"], "", facts, ""]
    if not about["matrices"]:
        return [*parts, "No attention matrix: it has no queries, keys and values that would define one."]
    example = f"{about['example']['tokens']} random tokens"
    if about["example"]["options"]:
        example += f", {keywords(about['example']['options'])}"
    parts.append(f"Attention matrix of one head, {example}; rows are queries, columns are keys")
    shades = Shades()
    parts.append(Columns([Panel.fit(shades.draw(m), title=title) for title, m in about["matrices"].items()]))
    return [*parts, shades.legend()]


def as_code(name: str, about: dict[str, Any]) -> str:
    return f"{name}: {about['type']}" + ("" if about["required"] else f" = {about['default']!r}")


class Shades:
    """Weights as shades of each row's largest weight; exactly zero stays blank."""

    def __init__(self) -> None:
        self.levels = "░▒▓█" if can_draw("░▒▓█") else ".:+#"

    def draw(self, matrix: Matrix) -> str:
        return "\n".join("".join(2 * self.shade(weight, max(map(abs, row))) for weight in row) for row in matrix)

    def shade(self, weight: float, largest: float) -> str:
        if weight == 0:
            return " "
        if weight < 0:
            return "-"
        return self.levels[min(3, int(4 * weight / largest))]

    def legend(self) -> str:
        quarters = ("below 1/4", "1/4", "1/2", "3/4 and more")
        shades = ", ".join(f"{2 * level} {text}" for level, text in zip(self.levels, quarters, strict=True))
        return f"of each row's largest weight: {shades}; blank: exactly zero; --: negative"
