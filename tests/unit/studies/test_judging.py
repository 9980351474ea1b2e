"""Intervals over seeds and rounds, and the words for where they lie."""

import math
import random

import pytest

from anyformer.studies._judging import (
    Span,
    above,
    everywhere,
    extrapolated,
    growth,
    over_seeds,
    ratios,
    rounds_up_to,
    spanned,
    whole,
    within,
)


def results(lengths, rounds=9, noise=0.0, **seconds):
    """Of a timing trial, from functions of the length."""
    drawn = random.Random(0)
    return {
        "lengths": list(lengths),
        "seconds": {
            name: [[take(n) * math.exp(drawn.gauss(0, noise)) for _ in range(rounds)] for n in lengths]
            for name, take in seconds.items()
        },
    }


def test_seeds_are_few_so_intervals_are_students():
    assert over_seeds([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 4.30 / math.sqrt(3), 2 + 4.30 / math.sqrt(3)))
    assert over_seeds([1.0, 3.0]).high == pytest.approx(2 + 12.71 * math.sqrt(2) / math.sqrt(2))
    assert over_seeds([5.0, 5.0]) == (5.0, 5.0, 5.0)
    assert over_seeds([0.0, 1.0] * 50).high == pytest.approx(0.5 + 2.26 * 0.50252 / 10, abs=1e-4)
    with pytest.raises(ValueError, match="two data points"):
        over_seeds([1.0])


@pytest.mark.parametrize(
    ("found", "word"), [((2, 1.5, 3), "reproduced"), ((0, -1, 0.5), "refuted"), ((1, 0, 2), "inconclusive")]
)
def test_above_a_threshold_is_the_whole_interval(found, word):
    assert above(Span(*found), 1.0) == word


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ((1, 0.95, 1.05), "reproduced"),
        ((1, 0.8, 1.05), "inconclusive"),
        ((1, 0.5, 3), "inconclusive"),
        ((0.7, 0.6, 0.89), "refuted"),
        ((1.5, 1.11, 2), "refuted"),
    ],
)
def test_within_bounds(found, word):
    assert within(Span(*found), 0.9, 1.1) == word


def test_one_case_refutes_what_is_said_of_all():
    assert everywhere(["reproduced", "reproduced"]) == "reproduced"
    assert everywhere(["reproduced", "inconclusive"]) == "inconclusive"
    assert everywhere(["reproduced", "inconclusive", "refuted"]) == "refuted"
    assert everywhere([]) == "inconclusive"


def test_ratios_are_those_of_each_length():
    found = ratios(results([8, 16], a=lambda n: 2 * n, b=lambda n: n * n), "a", "b")
    assert found == {8: pytest.approx((0.25,) * 3), 16: pytest.approx((0.125,) * 3)}
    half = {"lengths": [8, 16], "seconds": {"a": [[1.0], None], "b": [[2.0], [3.0]]}}
    assert list(ratios(half, "a", "b")) == [8]
    assert rounds_up_to(half, "a", 99) == {8: [1.0]}
    assert rounds_up_to(half, "b", 8) == {8: [2.0]}


def test_an_interval_of_draws_may_be_infinite():
    assert spanned([5.0, *map(float, range(200))]) == (5.0, 5.0, 194.0)
    assert spanned([math.inf, *[1.0] * 100, *[math.inf] * 100]) == (math.inf, 1.0, math.inf)


def test_growth_is_of_the_last_length_over_the_first():
    assert growth(results([196, 784, 3072], a=lambda n: n), "a").middle == pytest.approx(3072 / 196)
    found = growth(results([196, 3072], noise=0.05, a=lambda n: 1.0), "a")
    assert 0.8 < found.low < found.middle < found.high < 1.25


def test_a_whole_sequence_is_what_its_tokens_take_together():
    timed = results([100, 200, 400], line=lambda n: n, one=lambda n: 1.0)
    # 100 tokens as at the first length, then trapezoids, which a line fills
    assert whole(timed, "line", "one", 400).middle == pytest.approx((100 * 100 + (400**2 - 100**2) / 2) / 400)
    assert whole(timed, "line", "one", 200).middle == pytest.approx((100 * 100 + (200**2 - 100**2) / 2) / 200)
    assert whole(timed, "line", "one", 300).middle == pytest.approx((10_000 + 15_000 + 100 * 200) / 300)  # goes on flat
    assert whole(timed, "one", "one", 400) == pytest.approx((1.0, 1.0, 1.0))
    noisy = whole(results([100, 200, 400], noise=0.1, line=lambda n: n, one=lambda n: 1.0), "line", "one", 400)
    assert noisy.low < noisy.middle < noisy.high


def test_the_old_regression_is_drawn_again_too():
    lengths = (8, 16, 32, 64)
    exact = results(lengths, softmax=lambda n: 200 + 0.05 * n**2, linear=lambda n: 500 + 150 * n)
    meet = (150 + math.sqrt(150**2 + 4 * 0.05 * 300)) / (2 * 0.05)
    assert extrapolated(exact, "linear", "softmax", 64) == pytest.approx((meet,) * 3)
    longer = results((*lengths, 128), softmax=lambda n: 200 + 0.05 * n**2, linear=lambda n: 500 + 150 * n)
    longer["seconds"]["linear"][-1] = [1.0] * 9  # is not looked at
    assert extrapolated(longer, "linear", "softmax", 64).middle == pytest.approx(meet)
    never = results(lengths, softmax=lambda n: 1.0 + n, linear=lambda n: 1e6 + 10.0 * n)
    never["seconds"]["softmax"] = [[1.0] * 9] * 4
    assert extrapolated(never, "linear", "softmax", 64).middle == math.inf
    noisy = results(lengths, noise=0.02, softmax=lambda n: 200 + 0.05 * n**2, linear=lambda n: 500 + 150 * n)
    found = extrapolated(noisy, "linear", "softmax", 64)
    assert found.low < meet < found.high


def test_spans_in_words():
    assert str(Span(1.2345, 0.1, 12.345)) == "1.23 [0.1, 12.3]"
    assert str(Span(1234.5, 999.4, 70_000.0)) == "1,234 [999, 70,000]"
