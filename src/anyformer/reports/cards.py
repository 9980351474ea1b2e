"""What the cards and docstrings of mechanisms say: the capability table and a page with a section for each."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from anyformer.card import Card, Entry
from anyformer.reports.markdown import code, linked, plain, table

YES, NO = "✓", "\N{EN DASH}"

# Facts in words


def rows(name: str, card: Card) -> Iterator[tuple[str, Card]]:
    """The default's facts under the bare name, and a row for each variant that differs from them."""
    default = card.of(next(iter(card.variants), None))
    yield name, default
    for variant in card.variants:
        if card.of(variant) != default:
            yield f"{name}:{variant}", card.of(variant)


def short_paper(card: Card) -> str:
    """Authors and year."""
    return f"{card.paper.partition(f' {card.year}')[0]} {card.year}"


def order(exponent: float) -> str:
    return {0.0: "O(1)", 1.0: "O(N)"}.get(exponent, f"O(N^{exponent:g})")


def keywords(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def streams(card: Card) -> str:
    return card.stream if card.stream == "none" else f"{card.stream}, {card.state} state"


def remarks(card: Card) -> list[str]:
    """What else a user should know."""
    marks = {
        "estimator": "random: right on average only",
        "batch_statistics": "training mixes the items of a batch",
        "order": "positions matter",
        "compiles": "torch.compile and torch.export take it",
    }
    return [text for fact, text in marks.items() if getattr(card, fact)]


def read_docstring(docstring: str) -> dict[str, Any]:
    """The first line, then headed sections; the lines under `Paper` from the first equation on are the formula."""
    summary, _, rest = docstring.partition("\n")
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in rest.splitlines():
        head = re.match(r"(\w+)\s{2,}(.*)", line)
        if head:
            lines = sections.setdefault(head[1].lower(), [])
            line = head[2]
        lines.append(line.strip())
    paper = sections.get("paper", [])
    equation = next((n for n, line in enumerate(paper) if re.match(r"\S+ = ", line)), len(paper))
    return {
        "summary": summary,
        "paper": " ".join(paper[:equation]).strip(),
        "formula": "\n".join(paper[equation:]).strip(),
        "symbols": " ".join(sections.get("symbols", [])).strip(),
        "shapes": " ".join(sections.get("shapes", [])).strip(),
        "differs": " ".join(sections.get("differs", [])).strip(),
    }


def own_options(entry: Entry) -> list[str]:
    """The constructor's arguments beyond those that every mechanism of its slot takes, as written."""
    reserved = {"dim", "heads", "head_dim", "causal"}
    tree = ast.parse(entry.path.read_text(encoding="utf-8"))
    constructors = [
        made
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(is_card(statement) for statement in node.body)
        for made in node.body
        if isinstance(made, ast.FunctionDef) and made.name == "__init__"
    ]
    found = []
    for made in constructors:
        for argument, default in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True):
            if argument.arg not in reserved:
                kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
                found.append(argument.arg + kind + (f" = {ast.unparse(default)}" if default else ""))
    return found


def is_card(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "card"


# The table


def capabilities(found: Mapping[str, Entry], page: str = "docs/mechanisms.md") -> str:
    """A row for each mechanism, and for each variant whose facts differ from the default's."""
    headings = ("mechanism", "idea", "causal", "cross", "padding", "streams", "time", "memory", "year", "paper")
    lines = [
        (
            f"[{spec}]({page}#{entry.name})",
            entry.idea,
            facts.causal,
            YES if facts.cross else NO,
            YES if facts.padding else NO,
            NO if facts.stream == "none" else streams(facts),
            order(facts.time),
            order(facts.memory),
            str(facts.year),
            linked(facts.paper.replace(f" {facts.year}", "", 1)),
        )
        for entry in found.values()
        for spec, facts in rows(entry.name, entry.card)
    ]
    return table(headings, lines)


# The page


def page(found: Mapping[str, Entry]) -> str:
    """A section for each mechanism, from its docstring and its card."""
    ideas: dict[str, list[str]] = {}
    for entry in found.values():
        ideas.setdefault(entry.idea, []).append(f"[{entry.name}](#{entry.name})")
    contents = "\n".join(f"- {idea}: {', '.join(links)}" for idea, links in ideas.items())
    head = (
        "# Mechanisms\n\n"
        "Written by `make docs` from the docstring and the card of each mechanism's file; change those instead.\n"
        "N is the length. The laws hold every mechanism to what stands here: `anyformer laws NAME`.\n\n"
        f"{contents}\n"
    )
    return "\n".join([head, *(section(entry) for entry in found.values())])


def section(entry: Entry) -> str:
    """Idea, paper, formula, and what it can do."""
    said = read_docstring(entry.docstring)
    card = entry.card.of(next(iter(entry.card.variants), None))
    source = f"src/anyformer/mechanisms/{entry.idea}/{entry.name}.py"
    parts = [f"## {entry.name}", plain(said["summary"])]
    parts.append(f"Paper: {linked(said['paper'] or card.paper)}")
    if said["formula"]:
        parts.append(f"```text\n{said['formula']}\n```")
    facts = [f"{heading}: {plain(said[heading])}" for heading in ("symbols", "shapes", "differs") if said[heading]]
    facts += [
        f"causal: {card.causal}; cross-attention: {yes_no(card.cross)}; padding: {yes_no(card.padding)}; "
        f"streams: {streams(card)}",
        f"time: {order(card.time)}; memory: {order(card.memory)}",
    ]
    if remarks(card):
        facts.append("also: " + "; ".join(remarks(card)))
    if own_options(entry):
        facts.append("options: " + ", ".join(map(code, own_options(entry))))
    facts += [f"equals softmax with {code(keywords(limit))}" for limit in card.limits]
    facts.append(f"source: [{source}](../{source})")
    parts.append("\n".join(f"- {fact}" for fact in facts))
    if entry.card.variants:
        lines = [
            (code(f"{entry.name}:{name}"), options and code(keywords(options)), said_otherwise(entry.card, name))
            for name, options in entry.card.variants.items()
        ]
        parts.append(table(("variant", "options", "facts of its own"), [[cell or NO for cell in x] for x in lines]))
    return "\n\n".join(parts) + "\n"


def said_otherwise(card: Card, variant: str) -> str:
    return ", ".join(f"{fact}: {value}" for fact, value in card.overrides.get(variant, {}).items())


def yes_no(value: bool) -> str:
    return "yes" if value else "no"
