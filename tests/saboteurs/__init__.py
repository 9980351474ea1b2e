"""Deliberately broken mechanisms: each is a passing one with one line changed, and a law that must catch it.

A file is named after a law and lists the saboteurs that it must fail. To add one, append an entry: nothing registers.
"""

import importlib
import inspect
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

import anyformer
from anyformer.card import find


class Saboteur(NamedTuple):
    mechanism: str  # name or name:variant
    old: str  # a whole line of its file, without the indentation
    new: str
    mimics: str  # the real bug
    file: str = ""  # below src/anyformer, if the line is in what mechanisms share: it must lie in a function


def sabotaged(saboteur: Saboteur, folder: Path, monkeypatch) -> str:
    """Puts the broken mechanism into the catalog, with nothing else edited, and names it."""
    if saboteur.file:
        break_shared(saboteur, monkeypatch)
        return saboteur.mechanism
    entry, _ = find(saboteur.mechanism)
    name, colon, variant = saboteur.mechanism.partition(":")
    add_mechanism(changed(entry.path, saboteur), f"{name}_broken", folder, monkeypatch)
    return f"{name}_broken{colon}{variant}"


def add_mechanism(source: str, name: str, folder: Path, monkeypatch) -> None:
    """A new file in a new idea."""
    idea = folder / "sabotaged"
    idea.mkdir()
    (idea / f"{name}.py").write_text(source, encoding="utf-8")
    package = importlib.import_module("anyformer.mechanisms")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    sys.modules.pop(f"{package.__name__}.sabotaged.{name}", None)
    sys.modules.pop(f"{package.__name__}.sabotaged", None)


def changed(path: Path, saboteur: Saboteur) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [n for n, line in enumerate(lines) if line.strip() == saboteur.old]
    assert len(found) == 1, f"{path.name} has {len(found)} lines {saboteur.old!r}: bring the saboteur up to date"
    line = lines[found[0]]
    lines[found[0]] = line[: len(line) - len(line.lstrip())] + saboteur.new
    return "\n".join(lines) + "\n"


def break_shared(saboteur: Saboteur, monkeypatch) -> None:
    """The function that holds the line runs the changed code until the test ends."""
    path = Path(anyformer.__file__).parent / saboteur.file
    name = "anyformer." + saboteur.file.removesuffix(".py").replace("/", ".")
    broken = ModuleType(name)
    exec(compile(changed(path, saboteur), str(path), "exec"), vars(broken))
    healthy = functions(importlib.import_module(name))
    different = {at: f.__code__ for at, f in functions(broken).items() if f.__code__ != healthy[at].__code__}
    assert len(different) == 1, f"the change must touch one function, not {sorted(different)}"
    for at, code in different.items():
        assert isinstance(code, CodeType)
        monkeypatch.setattr(healthy[at], "__code__", code)


def functions(module: ModuleType) -> dict[str, FunctionType]:
    found = {}
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) == module.__name__:
            inside = vars(value) if isinstance(value, type) else {"": value}
            plain = {at: inspect.unwrap(getattr(f, "__func__", f)) for at, f in inside.items()}  # no decorators
            found |= {f"{name}.{at}": f for at, f in plain.items() if isinstance(f, FunctionType)}
    return found
