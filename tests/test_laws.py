"""Every law on every mechanism and variant that claims the matter, and on modules of other people."""

import json
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from saboteurs import Saboteur, add_mechanism
from torch import nn

from anyformer import catalog
from anyformer.card import entries, mechanisms, specs
from anyformer.cli import main
from anyformer.laws import LAWS, catalogued, foreign, judge
from anyformer.laws.cost import counted, training_step
from anyformer.laws.subject import poisoned
from anyformer.measure.operations import operations

subject_of = cache(catalogued)


@pytest.mark.parametrize(
    ("spec", "law"),
    [
        pytest.param(spec, name, id=f"{spec}-{name}")
        for spec in specs()
        for name, law in LAWS.items()
        if law.claimed(subject_of(spec))
    ],
)
def test_law(spec, law):
    (outcome,) = judge(subject_of(spec), [law])
    assert outcome.status == "pass", outcome.note


def test_cards_read_without_importing_equal_the_imported_ones():
    for name, entry in entries().items():
        assert catalog.mechanism(name).card == entry.card


def test_required_capabilities():
    cards = mechanisms()
    for name in ("softmax", "linear"):
        card = cards[name]
        assert (card.causal, card.cross, card.padding, card.stream) == ("option", True, True, "exact"), name
    local = cards["local"]
    assert (local.causal, local.cross, local.padding, local.stream) == ("option", False, True, "exact")
    x = torch.randn(1, 5, 16)
    able = [name for name, card in cards.items() if card.cross]
    assert {"softmax", "linear"} <= set(able)
    with pytest.raises(ValueError, match=", ".join(able)):
        catalog.build("local", dim=16, heads=2)(x, x)


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(3, 4),
        lambda: torch.empty(3, dtype=torch.bfloat16),
        lambda: torch.zeros(1).new_empty(3, 4),
        lambda: torch.zeros(3, 4).new_empty((2, 2), dtype=torch.float64),
        lambda: torch.empty_like(torch.zeros(3, 4).mT),
        lambda: torch.empty_strided((3, 4), (1, 3)),
        lambda: torch.zeros(1).new_empty_strided((3, 4), (4, 1)),
        lambda: torch.zeros(0).resize_(5),
        lambda: torch.empty(2, 3, 3).mT,
        lambda: nn.Parameter(torch.empty(7)),
    ],
)
def test_what_is_allocated_without_a_value_is_poisoned(allocate):
    with poisoned():
        assert allocate().isnan().all()


def test_poison_is_taken_away_again():
    with pytest.raises(KeyError), poisoned():
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_out_buffer_is_poisoned_where_nothing_is_written():
    with poisoned():
        room = torch.zeros(1).new_empty(4, 3)
        torch.mul(torch.ones(2, 3), 2, out=room[:2])
        assert room[:2].eq(2).all()
        assert room[2:].isnan().all()


@pytest.mark.parametrize("spec", specs())
def test_remembered_operations_are_counted_alike(spec):
    subject = subject_of(spec)
    for causal in subject.orders:
        plain, quick = (
            count(training_step(subject, causal, subject.fit(300), "meta")) for count in (operations, counted)
        )
        assert quick == plain > 0


def test_unknown_laws_are_refused():
    with pytest.raises(ValueError, match="did you mean 'causal'"):
        list(judge(subject_of("softmax"), ["casual"]))


# Estimators

FEATURES = '''
"""Positive random features."""

import torch
from torch import Tensor

from anyformer.card import Card
from anyformer.contract import Attention


class Features(Attention):
    card = Card(
        title="random features",
        paper="",
        year=2020,
        causal="no",
        cross=True,
        padding=True,
        stream="none",
        state="none",
        time=1,
        memory=1,
        estimator=True,
        tiny={"dim": 16, "heads": 2, "features": 16},
    )

    def __init__(self, *, heads: int, head_dim: int, causal: bool = False, features: int = 16) -> None:
        super().__init__(heads=heads, head_dim=head_dim, causal=causal)
        self.register_buffer("w_DF", torch.empty(head_dim, features))
        self.redraw(None)

    def redraw(self, generator: torch.Generator | None) -> None:
        self.w_DF.normal_(generator=generator)

    def phi(self, x: Tensor) -> Tensor:
        x = x / self.head_dim**0.25
        return (x @ self.w_DF - x.square().sum(-1, keepdim=True) / 2).exp() / self.w_DF.shape[1] ** 0.5

    def kernel(self, q: Tensor, k: Tensor) -> Tensor:
        return self.phi(q.double()) @ self.phi(k.double()).mT

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
        weight = self.phi(q) @ self.phi(k).mT
        return weight @ v / weight.sum(-1, keepdim=True)

    formula = attend
'''


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("x = x / self.head_dim**0.25", "x = x / self.head_dim**0.25", ""),
        (
            "return (x @ self.w_DF - x.square().sum(-1, keepdim=True) / 2).exp() / self.w_DF.shape[1] ** 0.5",
            "return (x @ self.w_DF - x.square().sum(-1, keepdim=True) / 2.2).exp() / self.w_DF.shape[1] ** 0.5",
            "standard errors",
        ),
        (
            "self.w_DF.normal_(generator=generator)",
            "self.w_DF.copy_(torch.randn(len(self.w_DF), 8, generator=generator).repeat(1, self.w_DF.shape[1] // 8))",
            "mean squared error falls",
        ),
        ("self.w_DF.normal_(generator=generator)", "self.w_DF.normal_(generator=None)", ""),
        ("self.w_DF.normal_(generator=generator)", "self.w_DF.fill_(0.1)", "redraw() changes nothing"),
        ("weight = self.phi(q) @ self.phi(k).mT", "weight = q @ k.mT", "attention by kernel()"),
    ],
)
def test_random_estimates_of_softmax(old, new, found, tmp_path, monkeypatch):
    assert FEATURES.count(old) == 1
    add_mechanism(FEATURES.replace(old, new), "features", tmp_path, monkeypatch)
    (outcome,) = judge(catalogued("features"), ["limit"])
    assert outcome.status == ("fail" if found else "pass"), outcome.note
    assert found in outcome.note
    assert not outcome.note.startswith("crashed")


# Modules of other people

FOREIGN = '''
import torch
from torch import nn


class Gated(nn.Module):
    """Attention as a user may write it: its own projections, no idea of our classes."""

    def __init__(self, dim=16):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, context=None, *, keep=None):
        if context is None and keep is not None:
            x = x.masked_fill(~keep[..., None], 0)
        context = x if context is None else context
        if keep is not None:
            context = context.masked_fill(~keep[..., None], 0)
        score = self.q(x) @ self.k(context).mT / x.shape[-1] ** 0.5
        if keep is not None:
            score = score.masked_fill(~keep[:, None], torch.finfo(score.dtype).min)
        return self.out(score.softmax(-1) @ self.v(context)) * torch.sigmoid(x)


class RunningMean(nn.Module):
    """Causal, and knows of nothing but x."""

    def __init__(self, dim=16):
        super().__init__()
        self.value, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        return self.out(self.value(x).to(x.dtype).cumsum(1) / count[:, None])


class Blurred(RunningMean):
    """Called causal, and each position sees the next."""

    def forward(self, x):
        return super().forward(x + nn.functional.pad(x, (0, 0, 0, 1))[:, 1:])


class Overflowing(RunningMean):
    """Sums thousands of tokens in whatever format it is given."""

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device)
        return self.out(self.value(4 * x).cumsum(1) / count[:, None])


class Deaf(Gated):
    """Takes a mask, and whatever else, and looks at none of it."""

    def forward(self, x, context=None, **options):
        return super().forward(x, context)


shared = Gated()


def same_one_each_time():
    return shared


def no_module():
    return 3
'''


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    (tmp_path / "somebody.py").write_text(FOREIGN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield SimpleNamespace(outcomes=lambda *given, **claims: list(judge(foreign(*given, **claims))))
    monkeypatch.delitem(__import__("sys").modules, "somebody", raising=False)


@pytest.mark.parametrize(
    ("factory", "claims", "judged"),
    [
        ("Gated", {"cross": True, "padding": True}, ["padding", "batch", "numbers", "strict", "copies"]),
        ("same_one_each_time", {"cross": True, "padding": True}, ["padding", "batch", "numbers", "strict", "copies"]),
        ("RunningMean", {"causal": True}, ["causal", "batch", "numbers", "strict", "copies"]),
    ],
)
def test_honest_foreign_modules_pass(theirs, factory, claims, judged):
    outcomes = theirs.outcomes(f"somebody:{factory}", **claims)
    assert [outcome.law for outcome in outcomes] == list(LAWS)
    assert {outcome.law: outcome.note for outcome in outcomes if outcome.status == "fail"} == {}
    assert [outcome.law for outcome in outcomes if outcome.status == "pass"] == judged


@pytest.mark.parametrize(
    ("factory", "claims", "failed"),
    [
        ("Blurred", {"causal": True}, {"causal"}),
        ("Overflowing", {"causal": True}, {"numbers"}),
        ("Deaf", {"cross": True, "padding": True}, {"padding", "strict"}),
        ("RunningMean", {}, {"strict"}),  # claims less: it is causal
        ("RunningMean", {"causal": True, "cross": True}, {"strict"}),  # claims more
        ("Gated", {"padding": True}, {"strict"}),  # takes a context all the same
    ],
)
def test_broken_foreign_modules_fail(theirs, factory, claims, failed):
    outcomes = {o.law: o for o in theirs.outcomes(f"somebody:{factory}", **claims)}
    assert failed <= {law for law, outcome in outcomes.items() if outcome.status == "fail"}
    for law in failed:
        assert not outcomes[law].note.startswith("crashed"), outcomes[law].note


def test_foreign_modules_on_the_command_line(theirs, capsys):
    assert main(["laws", "somebody:RunningMean", "--causal", "--json"]) == 0
    judged = {found["law"]: found["status"] for found in json.loads(capsys.readouterr().out)}
    assert judged["causal"] == "pass"
    assert judged["formula"] == "not claimed"
    assert main(["laws", "somebody:Blurred", "--causal", "--json"]) == 1
    (broken,) = [found for found in json.loads(capsys.readouterr().out) if found["status"] == "fail"]
    assert broken["law"] == "causal"


@pytest.mark.parametrize(
    ("target", "message"),
    [("nobody_has_this:it", "cannot import"), ("somebody:Missing", "has no 'Missing'")],
)
def test_foreign_targets_that_do_not_exist(theirs, target, message):
    with pytest.raises(ValueError, match=message):
        foreign(target)


def test_a_factory_that_returns_no_module_is_said_to(theirs):
    outcomes = theirs.outcomes("somebody:no_module")
    assert all("must return a torch.nn.Module" in o.note for o in outcomes if o.status == "fail")


def test_the_module_of_a_factory_is_not_changed(theirs):
    import somebody

    before = {name: t.clone() for name, t in somebody.shared.state_dict().items()}
    theirs.outcomes("somebody:same_one_each_time", cross=True, padding=True)
    assert all(torch.equal(before[name], t) for name, t in somebody.shared.state_dict().items())


def test_saboteurs_are_kept_up_to_date(tmp_path, monkeypatch):
    from saboteurs import sabotaged

    with pytest.raises(AssertionError, match="bring the saboteur up to date"):
        sabotaged(Saboteur("softmax", "no such line", "", ""), tmp_path, monkeypatch)
