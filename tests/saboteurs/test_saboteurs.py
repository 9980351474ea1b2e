"""The laws are laws only if they catch what breaks them: by the named law, and by assertion."""

import importlib
import importlib.util

import pytest

from anyformer.laws import LAWS, catalogued, judge
from saboteurs import Saboteur, sabotaged


def of(law: str) -> list[Saboteur]:
    name = f"saboteurs.{law}"
    return importlib.import_module(name).SABOTEURS if importlib.util.find_spec(name) else []


@pytest.mark.parametrize(
    ("law", "saboteur"),
    [
        pytest.param(law, saboteur, id=f"{law}-{saboteur.mechanism}-{n}")
        for law in LAWS
        for n, saboteur in enumerate(of(law))
    ],
)
def test_caught(law, saboteur, tmp_path, monkeypatch):
    subject = catalogued(sabotaged(saboteur, tmp_path, monkeypatch))
    (outcome,) = judge(subject, [law])
    assert outcome.status == "fail", f"{law} does not see: {saboteur.mimics}"
    assert not outcome.note.startswith("crashed"), outcome.note


@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_two_saboteurs(law):
    assert len(of(law)) >= 2
