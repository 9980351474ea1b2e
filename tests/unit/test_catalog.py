"""From a name to a layer, and what is refused on the way."""

import importlib.util
import json
import pickle

import pytest
import torch

import anyformer as af
from anyformer.cli import main
from anyformer.contract import Attention, AttentionLayer


def test_a_layer_keeps_its_options():
    layer = af.build("local", dim=24, heads=6, head_dim=5, causal=True, window=7, key_heads=2, bias=True)
    assert isinstance(layer, AttentionLayer)
    assert (layer.dim, layer.causal, layer.key_heads) == (24, True, 2)
    assert (layer.core.heads, layer.core.head_dim, layer.core.window) == (6, 5, 7)
    assert [tuple(m.weight.shape) for m in (layer.q, layer.k, layer.v, layer.out)] == [
        (30, 24),
        (10, 24),
        (10, 24),
        (24, 30),
    ]
    assert all(m.bias is not None for m in (layer.q, layer.k, layer.v, layer.out))
    assert layer(torch.randn(2, 9, 24)).shape == (2, 9, 24)


def test_the_defaults_are_eight_heads_that_share_dim():
    layer = af.build("softmax", dim=32)
    assert (layer.core.heads, layer.core.head_dim, layer.key_heads, layer.causal) == (8, 4, 8, False)
    assert layer.q.bias is None
    assert af.build("softmax", dim=32, head_dim=None).core.head_dim == 4


def test_a_core_is_the_mechanism_alone():
    core = af.core("local", heads=3, head_dim=5, causal=True, window=4)
    assert isinstance(core, Attention)
    assert (core.heads, core.head_dim, core.causal, core.window) == (3, 5, True, 4)


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: af.build("softmax", dim=12), ValueError, "dim=12 does not divide into 8 heads"),
        (lambda: af.build("softmax", dim=12, heads=5), ValueError, "heads= a divisor of 12, or head_dim="),
        (lambda: af.build("softmax", dim=0), ValueError, "dim must be at least 1, not 0"),
        (lambda: af.build("softmax", dim=-8), ValueError, "dim must be at least 1, not -8"),
        (lambda: af.build("softmax", dim="16"), TypeError, "dim is a whole number, not '16'"),
        (lambda: af.build("softmax", dim=True), TypeError, "dim is a whole number, not True"),
        (lambda: af.build("softmax", dim=16, heads=0), ValueError, "heads must be at least 1, not 0"),
        (lambda: af.build("softmax", dim=16, heads=2.0), TypeError, "heads is a whole number, not 2.0"),
        (lambda: af.build("softmax", dim=16, head_dim=0), ValueError, "head_dim must be at least 1"),
        (lambda: af.build("softmax", dim=16, key_heads=3), ValueError, "key_heads=3 does not divide heads=8"),
        (lambda: af.build("softmax", dim=16, key_heads=16), ValueError, "key_heads=16 does not divide heads=8"),
        (lambda: af.build("softmax", dim=16, causal="yes"), TypeError, "causal is True or False, not 'yes'"),
        (lambda: af.build("softmax", dim=16, causal=1), TypeError, "causal is True or False, not 1"),
        (lambda: af.build("softmax", dim=16, bias="no"), TypeError, "bias is True or False, not 'no'"),
        (lambda: af.build("local", dim=16, window=2**70), ValueError, "window must be below 2**63"),
        (lambda: af.build("local", dim=16, windw=3), TypeError, "local has no option 'windw'; did you mean 'window'?"),
        (lambda: af.build("softmax", dim=16, key_head=2), TypeError, "did you mean 'key_heads'?"),
        (lambda: af.build("softmax", dim=16, qux=2), TypeError, "options are bias, causal, dim, head_dim, heads, key_"),
        (lambda: af.core("softmax", heads=2, head_dim=4, dim=8), TypeError, "softmax has no option 'dim'"),
        (lambda: af.core("local", heads=2, head_dim=4, key_heads=1), TypeError, "local has no option 'key_heads'"),
        (lambda: af.core("local", heads=2, head_dim=4, self=1), TypeError, "local has no option 'self'"),
        (lambda: af.build("sotfmax", dim=16), ValueError, "did you mean 'softmax'?"),
    ],
)
def test_what_makes_no_sense_is_refused(call, kind, said):
    with pytest.raises(kind) as refusal:
        call()
    assert said in str(refusal.value)


def test_a_variant_sets_its_options(drop):
    drop()
    assert af.build("mean_of_all:doubled", dim=16).core.power == 2.0
    assert af.core("mean_of_all", heads=2, head_dim=4).power == 1.0
    assert af.core("mean_of_all:plain", heads=2, head_dim=4, shift=3.0).shift == 3.0


@pytest.mark.parametrize("value", [3.0, 2.0])
def test_contradicting_a_variant_is_a_type_error(drop, value):
    drop()
    with pytest.raises(TypeError, match=rf"power={value} contradicts mean_of_all:doubled, which sets 2\.0"):
        af.build("mean_of_all:doubled", dim=16, power=value)
    with pytest.raises(TypeError, match="contradicts mean_of_all:plain"):  # the default is a variant too
        af.core("mean_of_all", heads=2, head_dim=4, power=value)


def test_an_option_of_a_variant_is_no_longer_offered(drop):
    drop()
    with pytest.raises(
        TypeError, match="has no option 'powr'; its options are bias, causal, dim, head_dim, heads, key_h"
    ):
        af.build("mean_of_all:doubled", dim=16, powr=3)


def test_what_cannot_be_causal_says_who_can(drop):
    drop()
    with pytest.raises(ValueError, match=r"mean_of_all:doubled cannot be causal; these can: .*softmax"):
        af.build("mean_of_all:doubled", dim=16, causal=True)
    assert af.build("mean_of_all:doubled", dim=16).causal is False


@pytest.mark.parametrize("options", [{}, {"causal": False}])
def test_what_is_only_causal_says_so(drop, options):
    drop()
    with pytest.raises(ValueError, match="mean_of_all:halved is only causal: say causal=True; these can do without: "):
        af.core("mean_of_all:halved", heads=2, head_dim=4, **options)
    assert af.core("mean_of_all:halved", heads=2, head_dim=4, causal=True).causal


MIXER = '''"""Averaging: each token becomes the mean of all.

Paper    Nobody 2032, Averages, none
Differs  nothing
"""

from anyformer.card import Card
from anyformer.contract import Mixer


class Averaging(Mixer):
    card = Card(title="averaging", paper="Nobody 2032, Averages, none", year=2032, slot="mixer", causal="no",
                cross=False, padding=False, stream="none", state="none", time=1, memory=1)

    def __init__(self, *, dim: int, causal: bool = False) -> None:
        super().__init__()
        self.dim, self.causal = dim, causal

    def forward(self, x_BNC, context_BMC=None, *, keep=None):
        return x_BNC.mean(1, keepdim=True).expand_as(x_BNC)

    formula = forward
'''


def test_a_mixer_without_queries_is_built_but_has_no_core(drop):
    drop("averaging", MIXER)
    layer = af.build("averaging", dim=6)
    assert layer.dim == 6
    with pytest.raises(
        ValueError, match=r"averaging has no queries and keys, so it has no core; these have: .*softmax"
    ):
        af.core("averaging", heads=2, head_dim=4)
    with pytest.raises(TypeError, match="averaging has no option 'heads'; its options are causal, dim"):
        af.build("averaging", dim=6, heads=2)
    with pytest.raises(ValueError, match="dim must be at least 1"):
        af.build("averaging", dim=0)


def test_what_does_not_stream_says_who_does(drop):
    drop("averaging", MIXER)
    layer = af.build("averaging", dim=6)
    for call in (lambda: layer.start(2), lambda: layer.stream(torch.zeros(2, 1, 6), None)):
        with pytest.raises(ValueError, match=r"Averaging does not stream; these do: .*softmax"):
            call()


# A file dropped in is found everywhere, with nothing else edited.


def test_a_dropped_file_can_be_built_and_computes(drop):
    drop()
    assert af.mechanisms()["mean_of_all"].year == 2031
    layer = af.build("mean_of_all:doubled", dim=8, heads=2).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[:, 0], layer.out(2 * layer.v(x).mean(1)))
    assert pickle.loads(pickle.dumps(layer)).core.power == 2.0


def test_a_dropped_file_is_listed_and_shown(drop, capsys):
    drop()
    assert main(["list", "--json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "mean_of_all"]
    assert row["idea"] == "averages"
    assert row["variants"]["doubled"] == {"options": {"power": 2.0}, "facts": {"causal": "no"}}
    assert main(["list", "--idea", "averages"]) == 0
    assert "mean_of_all:doubled" in capsys.readouterr().out
    assert main(["show", "mean_of_all:doubled", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["formula"].startswith("y_i = power sum_j")
    assert shown["matrices"]["not causal"][0] == [0.1] * 20


def test_a_dropped_file_is_judged(drop, capsys):
    drop()
    assert main(["laws", "mean_of_all", "--json", "--law", "formula", "--law", "batch"]) == 0
    outcomes = json.loads(capsys.readouterr().out)
    assert [(o["mechanism"], o["law"], o["status"]) for o in outcomes] == [
        (f"mean_of_all:{variant}", law, "pass")
        for variant in ("plain", "doubled", "halved")
        for law in ("formula", "batch")
    ]


def test_a_dropped_file_is_in_the_generated_docs(drop, source):
    """Whatever the docs tool writes: the README's table and the page of mechanisms."""
    root = source.parent.parent
    spec = importlib.util.spec_from_file_location("docs_tool", root / "tools" / "docs.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    before = tool.texts(root)
    assert not any("mean_of_all" in text for text in before.values())
    drop()
    after = tool.texts(root)
    assert {path.name for path in after if after[path] != before[path]} == {"README.md", "mechanisms.md"}
    page = after[root / "docs" / "mechanisms.md"]
    assert "On Taking Means" in page
    assert "power: float" in page
    assert "mean_of_all" in after[root / "README.md"]


def test_an_edited_file_is_read_again(drop):
    path = drop()
    assert af.mechanisms()["mean_of_all"].year == 2031
    path.write_text(path.read_text().replace("year=2031", "year=20310"))
    assert af.mechanisms()["mean_of_all"].year == 20310


def test_an_unchanged_file_is_read_once(drop, monkeypatch):
    """Building asks for every card: with hundreds of them, parsing each time would take seconds."""
    drop()
    af.mechanisms()
    monkeypatch.setattr("anyformer.card.read", lambda path: pytest.fail(f"{path} was parsed again"))
    af.build("mean_of_all", dim=8)
