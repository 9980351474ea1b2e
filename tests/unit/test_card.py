"""Cards: read without importing, and refused with one sentence when they are malformed."""

import importlib
import json
from dataclasses import fields, replace

import pytest

import anyformer as af
from anyformer import card as cards
from anyformer.card import Card

LITERAL = """
class Thing:
    card = Card(title="t", paper="A 2020, T", year=2020, causal="no", cross=False, padding=False, stream="none",
                state="none", time=1, memory=1{more})
"""
FACTS = {
    "title": "t",
    "paper": "A 2020, T",
    "year": 2020,
    "causal": "no",
    "cross": False,
    "padding": False,
    "stream": "none",
    "state": "none",
    "time": 1,
    "memory": 1,
}


def written(tmp_path, text):
    path = tmp_path / "thing.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", cards.entries())
def test_reading_equals_importing(name):
    entry = cards.entries()[name]
    module = importlib.import_module(entry.module)
    kinds = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    assert [vars(kind)["card"] for kind in kinds if "card" in vars(kind)] == [entry.card]
    assert module.__doc__.strip() == entry.docstring


def test_a_literal_card_is_read(tmp_path):
    assert cards.read(written(tmp_path, LITERAL.format(more=", block=3"))) == Card(**FACTS, block=3)


def test_a_file_without_a_card_holds_none(tmp_path):
    assert cards.read(written(tmp_path, "class Thing:\n    other = 1\n")) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LITERAL.format(more="") + "\n" + LITERAL.format(more="").replace("Thing", "Other"), "holds 2 cards"),
        ("class Thing:\n    card = dict(year=1)\n", "write the card as `card = Card(name=value, ...)`"),
        ("class Thing:\n    card = Card('t')\n", "write the card as `card = Card(name=value, ...)`"),
        (LITERAL.format(more=", block=SIZE"), "'block' must be a literal"),
        (LITERAL.format(more=", block=2 * 64"), "'block' must be a literal"),
        (LITERAL.format(more=", tiny={[]: 1}"), "'tiny' must be a literal"),
        (LITERAL.format(more=", **more"), "**more hides them"),
        (LITERAL.format(more=", speed=3"), "a card has no fact 'speed'; it has batch_statistics, block, causal,"),
        (LITERAL.format(more="").replace("year=2020,", ""), "the card is incomplete (.*'year'"),
        (LITERAL.format(more="").replace('"no"', '"maybe"'), "causal is one of no, option, only, not 'maybe'"),
        (LITERAL.format(more=', slot="resizer"'), "slot is one of attention, mixer, not 'resizer'"),
        (
            LITERAL.format(more=', overrides={"b": {"year": 1}}'),
            "overrides facts of 'b', which is none of its variants",
        ),
        (LITERAL.format(more=', variants={"b": {}}, overrides={"b": {"yaer": 1}}'), "overrides 'yaer' for 'b'"),
        (LITERAL.format(more="").replace("class Thing:", "class Thing"), "line 2 is no Python"),
    ],
)
def test_a_malformed_card_is_refused_in_one_sentence(tmp_path, text, said):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=r"thing\.py") as refusal:
        cards.read(path)
    message = str(refusal.value)
    assert "\n" not in message
    for part in said.split(".*"):
        assert part in message


def test_a_mechanism_file_without_a_card_is_refused(drop):
    drop("nothing", "class Nothing:\n    pass\n")
    with pytest.raises(ValueError, match=r"nothing\.py holds no card; a mechanism's class starts with `card = Card"):
        cards.entries()


def test_two_mechanisms_of_one_name_are_refused(drop):
    path = drop("softmax")
    with pytest.raises(ValueError, match="two mechanisms are called 'softmax'") as refusal:
        cards.entries()
    assert str(path) in str(refusal.value)


def test_a_file_with_an_underscore_is_no_mechanism(drop):
    before = cards.specs()
    drop("_helpers", "x = 1\n")
    assert cards.specs() == before


def test_a_variant_overrides_facts():
    card = Card(**FACTS, variants={"a": {}, "b": {"x": 1}}, overrides={"b": {"causal": "only"}})
    assert card.of("b") == replace(card, causal="only")
    assert card.of("a") == card.of(None) == card


def test_specs_are_names_and_variants(drop):
    drop()
    found = cards.specs()
    assert [s for s in found if s.startswith("mean_of_all")] == [
        "mean_of_all:plain",
        "mean_of_all:doubled",
        "mean_of_all:halved",
    ]
    assert {s.partition(":")[0] for s in found} == set(af.mechanisms())
    assert all(cards.find(s) for s in found)


def test_the_first_variant_is_the_default(drop):
    drop()
    assert cards.find("mean_of_all")[1] == "plain"
    assert cards.find("mean_of_all:doubled")[1] == "doubled"
    assert cards.find("softmax")[1] is None


@pytest.mark.parametrize(
    ("spec", "kind", "said"),
    [
        ("softmx", ValueError, "there is no mechanism 'softmx'; did you mean 'softmax'?; `anyformer list` shows all"),
        ("zzzz", ValueError, "there is no mechanism 'zzzz'; `anyformer list` shows all"),
        ("", ValueError, "there is no mechanism ''"),
        ("softmax:fast", ValueError, "softmax has no variant 'fast'; it has none"),
        ("softmax:", ValueError, "softmax has no variant ''; it has none"),
        ("mean_of_all:", ValueError, "mean_of_all has no variant ''; it has plain, doubled, halved"),
        ("mean_of_all:double", ValueError, "did you mean 'doubled'?; it has plain, doubled, halved"),
        (7, TypeError, "named by a string such as 'softmax', not int"),
        (None, TypeError, "named by a string such as 'softmax', not NoneType"),
    ],
)
def test_an_unknown_name_is_refused_with_a_hint(drop, spec, kind, said):
    drop()
    with pytest.raises(kind) as refusal:
        cards.find(spec)
    assert said in str(refusal.value)


def test_able_names_those_that_can(drop):
    drop()
    assert cards.able(lambda card: card.year == 2031) == "mean_of_all"
    assert cards.able(lambda card: False) == "no mechanism yet"


def test_mechanisms_are_the_cards_however_often_they_are_asked_for():
    importlib.import_module("anyformer.mechanisms.exact.softmax")
    for _ in range(2):
        assert all(isinstance(card, Card) for card in af.mechanisms().values())
    assert {"softmax", "linear", "local"} <= set(af.mechanisms())


def test_a_card_cannot_change():
    with pytest.raises(AttributeError):
        af.mechanisms()["softmax"].year = 1


def test_every_card_is_json():
    for card in af.mechanisms().values():
        assert json.loads(json.dumps({f.name: getattr(card, f.name) for f in fields(card)}))


HEAVY = "print([m for m in ('torch', 'numpy', 'matplotlib', 'rich') if m in sys.modules])"


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import anyformer", []),
        ("import anyformer; anyformer.mechanisms(); anyformer.mechanisms()", []),
        ("from anyformer.cli import main; main(['list'])", ["rich"]),
        ("from anyformer.cli import main; main(['list', '--json'])", []),
        ("from anyformer.cli import main; main(['--help'])", []),
    ],
)
def test_looking_around_imports_nothing_heavy(python, code, allowed):
    done = python("-c", f"import sys; {code}; {HEAVY}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[-1] == str(allowed)


def test_the_package_has_no_other_names():
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        _ = af.biuld
