"""What the pages for people say is so: their Python runs, their commands work, their links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from anyformer.cli import main, verbs

ROOT = Path(__file__).parent.parent
PAGES = [p for p in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))) if p.exists()]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(page, *languages):
    """Line number and text of each fenced block in one of the languages."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^ *```(\w+)[^\n]*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        if found[1] in languages:
            yield text.count("\n", 0, found.start(2)) + 1, found[2]


def cases(*languages):
    return [
        pytest.param(page, line, text, id=f"{page.name}:{line}")
        for page in PAGES
        for line, text in blocks(page, *languages)
    ]


def commands(program):
    """Each line of the shell blocks that runs a program, without prompt and comment."""
    found = []
    for case in cases("console", "sh", "bash", "shell"):
        page, first, text = case.values
        for number, line in enumerate(text.splitlines()):
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            if words[:1] == [program]:
                found.append(pytest.param(words[1:], id=f"{page.name}:{first + number}"))
    return found


@pytest.mark.parametrize(("page", "line", "text"), cases("python"))
def test_python_runs(page, line, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = compile("\n" * (line - 1) + text, str(page), "exec")  # a traceback shows the page's own line
    exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize("words", commands("anyformer"))
def test_a_command_works(words, tmp_path, monkeypatch, capsys):
    (tmp_path / "records").symlink_to(ROOT / "records")
    monkeypatch.chdir(tmp_path)
    first = next((n for n, word in enumerate(words) if word in ("|", ">", "&&", ";")), len(words))
    assert main(words[:first]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_verb_that_is_named_exists(page):
    assert set(re.findall(r"`(?:\$ )?anyformer (\w+)", page.read_text(encoding="utf-8"))) <= set(verbs())


@pytest.mark.parametrize("words", commands("make"))
def test_a_target_of_make_exists(words):
    targets = re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {word for word in words if "=" not in word and not word.startswith("-")} <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), target


def anchors(page):
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_the_readme_says_what_to_run():
    assert {"crossover", "test"} <= {word for case in commands("make") for words in case.values for word in words}
    assert "make crossover" in README
    assert "make test" in README


def test_the_readme_shows_python():
    assert any(page.name == "README.md" for page, *_ in (case.values for case in cases("python")))
