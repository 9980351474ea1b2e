"""The facts of a mechanism, and reading them without importing torch.

A card is a literal in the body of a mechanism's class. `mechanisms()` reads the cards of all files
under `anyformer/mechanisms/<idea>/` with `ast`, so listing hundreds of mechanisms costs no import.
"""

import ast
import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

# Imported before the function of the same name is bound to `anyformer.mechanisms`: a later import would replace it.
PACKAGE = importlib.import_module("anyformer.mechanisms")


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a mechanism is and what it can do; the laws hold it to every word."""

    title: str
    paper: str
    year: int
    slot: Literal["attention", "mixer"] = "attention"
    causal: Literal["no", "option", "only"]
    cross: bool
    padding: bool
    stream: Literal["exact", "segment", "none"]  # a claim about the causal form
    state: Literal["constant", "growing", "none"]  # what streaming carries along
    time: float  # operations grow as N ** time
    memory: float  # peak memory of forward + backward grows as N ** memory
    price: str = ""  # what one gives up for it, in a sentence
    block: int = 1  # rows that the fast form handles at once; the laws test around it
    estimator: bool = False  # random: right on average only
    batch_statistics: bool = False  # training mixes the items of a batch
    order: bool = False  # positions matter, so padding on the left is not the same as removing
    compiles: bool = False  # torch.compile and torch.export take it
    tiny: dict[str, Any] = field(default_factory=lambda: {"dim": 16, "heads": 2})
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> options
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> facts
    limits: tuple[dict[str, Any], ...] = ()  # exact limits: options under which it is softmax

    def __post_init__(self) -> None:
        for fact in fields(self):
            choices = get_args(fact.type) if get_origin(fact.type) is Literal else ()
            if choices and getattr(self, fact.name) not in choices:
                raise ValueError(
                    f"a card's {fact.name} is one of {', '.join(choices)}, not {getattr(self, fact.name)!r}"
                )
        for variant, facts in self.overrides.items():
            if variant not in self.variants:
                raise ValueError(f"a card overrides facts of {variant!r}, which is none of its variants")
            for name in facts.keys() - {fact.name for fact in fields(self)}:
                raise ValueError(f"a card overrides {name!r} for {variant!r}, which is no fact")

    def of(self, variant: str | None) -> "Card":
        """The facts of one variant."""
        return replace(self, **self.overrides.get(variant or "", {}))


@dataclass(frozen=True)
class Entry:
    """Where a mechanism was found."""

    name: str
    idea: str
    path: Path
    card: Card

    @property
    def module(self) -> str:
        return f"anyformer.mechanisms.{self.idea}.{self.name}"

    @property
    def docstring(self) -> str:
        return ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""


def read(path: Path) -> Card | None:
    """The card written in a file, or None when the file holds none."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as broken:
        raise ValueError(f"{path}, line {broken.lineno} is no Python: {broken.msg}") from None
    found = [
        statement.value
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign) and [getattr(target, "id", "") for target in statement.targets] == ["card"]
    ]
    if not found:
        return None
    if len(found) > 1:
        raise ValueError(f"{path} holds {len(found)} cards; give each mechanism its own file")
    call = found[0]
    known = {f.name for f in fields(Card)}
    if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Card" and not call.args):
        raise ValueError(f"{path}: write the card as `card = Card(name=value, ...)`")
    facts: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(
                f"{path}: write the card's facts out, as name=value; **{ast.unparse(keyword.value)} hides them"
            )
        if keyword.arg not in known:
            raise ValueError(f"{path}: a card has no fact {keyword.arg!r}; it has {', '.join(sorted(known))}")
        try:
            facts[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            raise ValueError(f"{path}: the card's {keyword.arg!r} must be a literal") from None
    try:
        return Card(**facts)
    except TypeError as missing:
        raise ValueError(f"{path}: the card is incomplete ({missing})") from None
    except ValueError as wrong:
        raise ValueError(f"{path}: {wrong}") from None


@cache
def read_once(path: Path, changed: int, size: int) -> Card | None:
    """Building asks for every card each time; an unchanged file is read once."""
    return read(path)


def entries() -> dict[str, Entry]:
    """Every mechanism file, by name; the folder is its idea."""
    found: dict[str, Entry] = {}
    for folder in PACKAGE.__path__:
        for path in sorted(Path(folder).glob("*/*.py")):
            if path.stem.startswith("_"):
                continue
            card = read_once(path, path.stat().st_mtime_ns, path.stat().st_size)
            if card is None:
                raise ValueError(f"{path} holds no card; a mechanism's class starts with `card = Card(...)`")
            if path.stem in found:
                raise ValueError(f"two mechanisms are called {path.stem!r}: {found[path.stem].path} and {path}")
            found[path.stem] = Entry(path.stem, path.parent.name, path, card)
    return dict(sorted(found.items(), key=lambda item: (item[1].idea, item[0])))


def mechanisms() -> dict[str, Card]:
    """Every mechanism's card, by name."""
    return {name: entry.card for name, entry in entries().items()}


def specs() -> list[str]:
    """Every `name` or `name:variant` that can be built, one for each variant."""
    return [
        f"{name}:{variant}" if variant else name
        for name, card in mechanisms().items()
        for variant in (card.variants or [""])
    ]


def find(spec: str) -> tuple[Entry, str | None]:
    """The entry and the variant that `name` or `name:variant` means; the first variant is the default."""
    if not isinstance(spec, str):
        raise TypeError(f"a mechanism is named by a string such as 'softmax', not {type(spec).__name__}")
    name, _, variant = spec.partition(":")
    known = entries()
    if name not in known:
        raise ValueError(f"there is no mechanism {name!r}{did_you_mean(name, known)}; `anyformer list` shows all")
    card = known[name].card
    if not variant and ":" not in spec:
        return known[name], next(iter(card.variants), None)
    if variant not in card.variants:
        have = f"it has {', '.join(card.variants)}" if card.variants else "it has none"
        raise ValueError(f"{name} has no variant {variant!r}{did_you_mean(variant, card.variants)}; {have}")
    return known[name], variant


def did_you_mean(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def able(can: Callable[[Card], bool]) -> str:
    """The mechanisms that can do something, for messages that say what to take instead."""
    names = [name for name, card in mechanisms().items() if can(card)]
    return ", ".join(names) or "no mechanism yet"
