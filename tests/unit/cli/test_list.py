"""`anyformer list`: the cards, as a table and as JSON."""

import json
from dataclasses import fields

import pytest

import anyformer as af
from anyformer.card import Card, entries
from anyformer.cli import main


def test_the_table_has_a_row_for_each_mechanism(capsys):
    assert main(["list"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    facts = ["causal", "cross", "padding", "stream", "time", "memory"]
    assert heading.split() == ["name", "variants", "idea", "paper", *facts]
    assert {row.split()[0].partition(":")[0] for row in rows} == set(af.mechanisms())
    (softmax,) = [row for row in rows if row.startswith("softmax ")]
    assert "Vaswani et al. 2017" in softmax
    assert softmax.split()[-2:] == ["O(N^2)", "O(N)"]


def test_json_has_every_fact(capsys):
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = entries()
    assert [row["name"] for row in rows] == list(found)
    for row in rows:
        card = found[row["name"]].card
        assert row["idea"] == found[row["name"]].idea
        for fact in {f.name for f in fields(Card)} - {"variants", "overrides"}:
            assert row[fact] == json.loads(json.dumps(getattr(card, fact)))
        assert list(row["variants"]) == list(card.variants)


@pytest.mark.parametrize("idea", sorted({entry.idea for entry in entries().values()}))
def test_one_idea_only(capsys, idea):
    assert main(["list", "--idea", idea, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert {row["idea"] for row in rows} == {idea}


def test_a_variant_that_differs_has_a_row_of_its_own(capsys, drop):
    drop()
    assert main(["list", "--idea", "averages"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["mean_of_all", "mean_of_all:doubled", "mean_of_all:halved"]
    assert "plain, doubled, halved" in rows[0]
    assert " option " in rows[0]
    assert " only " in rows[2]
