"""`anyformer show`: one mechanism's page, and the matrix that it amounts to."""

import json

import pytest
import torch

import anyformer as af
from anyformer.card import specs
from anyformer.cli import main


def shown(capsys, *words):
    assert main(["show", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("spec", specs())
def test_every_mechanism_has_a_page(capsys, spec):
    assert main(["show", spec]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"{spec} (")
    for heading in ("paper", "formula", "differs", "causal", "options"):
        assert f"\n{heading} " in page
    about = shown(capsys, spec)
    assert about["name"] == spec.partition(":")[0]
    assert about["facts"]["year"] == af.mechanisms()[about["name"]].year
    assert " = " in about["formula"]
    assert about["options"]["heads"] == {"type": "int", "required": True, "default": None, "layer": False} or (
        about["facts"]["slot"] != "attention"
    )


def test_the_matrix_of_softmax_is_softmax(capsys):
    matrices = shown(capsys, "softmax", "--tokens", "6")["matrices"]
    assert list(matrices) == ["not causal", "causal"]
    for name, rows in matrices.items():
        weights = torch.tensor(rows, dtype=torch.float64)
        assert weights.shape == (6, 6)
        torch.testing.assert_close(weights.sum(1), torch.ones(6, dtype=torch.float64))
        assert (weights.triu(1) == 0).all() == (name == "causal")


def test_an_option_changes_the_matrix(capsys):
    about = shown(capsys, "local", "--tokens", "9", "--set", "window=2")
    assert about["example"] == {"tokens": 9, "options": {"window": 2}}
    weights = torch.tensor(about["matrices"]["not causal"])
    assert ((weights != 0) == (torch.arange(9)[:, None] - torch.arange(9)).abs().lt(2)).all()


def test_the_page_draws_zero_as_blank(capsys):
    assert main(["show", "local", "--tokens", "3", "--set", "window=1"]) == 0
    page = capsys.readouterr().out
    drawn = [line.partition("│")[2].partition("│")[0].rstrip() for line in page.splitlines() if "│" in line]
    assert drawn == [" ██", "   ██", "     ██"]


def test_showing_leaves_the_random_state_alone(capsys):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    main(["show", "linear"])
    assert torch.equal(torch.rand(3), expected)
    assert capsys.readouterr().out


def test_a_mixer_has_no_matrix(capsys, drop):
    text = '''"""Nothing: each token stays as it is.

Paper    Nobody 2033, Nothing
         y = x
Differs  nothing
"""

from anyformer.card import Card
from anyformer.contract import Mixer


class Nothing(Mixer):
    card = Card(title="nothing", paper="Nobody 2033, Nothing", year=2033, slot="mixer", causal="no", cross=False,
                padding=False, stream="none", state="none", time=0, memory=1)

    def __init__(self, *, dim: int, causal: bool = False) -> None:
        super().__init__()
        self.dim, self.causal = dim, causal

    def forward(self, x_BNC, context_BMC=None, *, keep=None):
        return x_BNC

    formula = forward
'''
    drop("nothing_at_all", text)
    assert main(["show", "nothing_at_all"]) == 0
    assert "No attention matrix" in capsys.readouterr().out
    assert shown(capsys, "nothing_at_all")["matrices"] == {}
    assert main(["show", "nothing_at_all", "--tokens", "3"]) == 2
    assert "no matrix to draw" in capsys.readouterr().err
