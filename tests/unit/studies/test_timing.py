"""Rounds at growing lengths: which are measured within a budget, and what they come to."""

import pytest

from anyformer.measure.crossing import REFINED, ROUNDS
from anyformer.studies import _timing
from anyformer.studies._timing import summed_up, timed


@pytest.fixture
def clock(monkeypatch):
    """Time passes only where a contender says so."""
    now = [0.0]

    def rounds(runs, *, seconds, at_least, at_most):
        taken = {name: [take] * at_least for name, take in runs.items()}
        now[0] += sum(map(sum, taken.values()))
        return taken

    monkeypatch.setattr(_timing, "rounds", rounds)
    monkeypatch.setattr(_timing, "perf_counter", lambda: now[0])


def take(name, length):
    return {"base": length**2 / 1e6, "ours": length / 1e4, "short": length / 1e4}[name]


def test_every_length_and_some_around_the_crossing_are_measured(clock):
    found = timed(("base", "ours"), take, [25, 50, 200, 400], 1e9)
    assert {25, 50, 200, 400} < set(found["lengths"])
    assert found["lengths"] == sorted(found["lengths"])
    assert found["left_out"] == []
    for length, taken in zip(found["lengths"], found["seconds"]["ours"], strict=True):
        assert len(taken) == (ROUNDS if length in (25, 50, 200, 400) else REFINED)
    assert found["crossover"]["ours"]["length"] == pytest.approx(100, abs=1)
    assert found["exponent"]["base"]["median"] == pytest.approx(2, abs=0.05)
    assert found["exponent"]["ours"]["median"] == pytest.approx(1, abs=0.05)
    assert set(found["crossover"]) == {"ours"}


def test_lengths_that_do_not_fit_into_the_budget_are_named(clock):
    found = timed(("base", "ours"), take, [100, 200, 400, 800], 1.5)
    assert {100, 200} <= set(found["lengths"])
    assert max(found["lengths"]) == 200
    assert found["left_out"] == [400, 800]
    assert found["exponent"] == {"base": None, "ours": None}  # three lengths are too few


def test_a_contender_may_stop_early(clock):
    def make(name, length):
        return None if name == "short" and length > 100 else take(name, length)

    found = timed(("base", "ours", "short"), make, [25, 50, 100, 200], 1e9)
    assert [taken is None for taken in found["seconds"]["short"]] == [n > 100 for n in found["lengths"]]
    assert found["crossover"]["short"]["up_to"] == 100


def test_what_was_taken_is_kept_as_it_is():
    taken = {8: {"base": [1.0, 2.0], "ours": [0.5, 0.5]}, 16: {"base": [4.0, 4.0]}}
    found = summed_up(("base", "ours"), taken)
    assert found["lengths"] == [8, 16]
    assert found["seconds"] == {"base": [[1.0, 2.0], [4.0, 4.0]], "ours": [[0.5, 0.5], None]}
