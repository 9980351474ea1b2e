"""Whole searches on made-up laws of time, whose crossover is known."""

from collections import Counter
from math import exp, log, sin

import numpy as np
import pytest

from anyformer.measure.crossing import (
    FINE,
    LEVEL,
    MARGIN,
    REFINED,
    ROUNDS,
    Crossover,
    ahead,
    bounds,
    crossover,
    next_length,
    too_noisy,
    zeros,
)

GRID = (128, 256, 512, 1024, 2048, 4096)


def meeting_at(length, softmax_overhead, linear_overhead):
    """Seconds of softmax, a + c N^2, over those of a linear mechanism, a' + N, with c so that they meet there."""
    slope = (linear_overhead + length - softmax_overhead) / length**2
    return lambda n: (softmax_overhead + slope * n * n) / (linear_overhead + n)


def search(law, random, *, noise=0.05, outliers=0.0, moods=0.0, rounds=ROUNDS, refined=REFINED):
    """What the procedure measures, with noise on both sides of each ratio and outliers three times as slow.

    `moods`: how much each length has in common that the next one does not have.
    """
    ratios = {}
    while (length := next_length(ratios, GRID)) is not None:
        assert length not in ratios
        count = rounds if length in GRID else refined
        above, below = random.normal(0, noise, (2, count))
        slow = np.where(random.random(count) < outliers, 3.0 ** random.choice([-1, 1], count), 1)
        ratios[length] = (law(length) * np.exp(above - below + random.normal(0, moods)) * slow).tolist()
    return ratios


def verdicts(law, draws=100, **conditions):
    random = np.random.default_rng(7)
    return [crossover(search(law, random, **conditions)) for _ in range(draws)]


def kinds(law, **conditions):
    return Counter(found.kind for found in verdicts(law, **conditions))


def flat(law, lengths):
    return {length: [law(length)] * 9 for length in lengths}


# Truth


@pytest.mark.parametrize("conditions", [{}, {"outliers": 0.1}, {"rounds": 5, "refined": 5}], ids=str)
@pytest.mark.parametrize(
    ("truth", "overheads"), [(180, (20, 60)), (700, (100, 300)), (700, (10, 1000)), (2500, (200, 1000))]
)
def test_the_interval_holds_the_crossover(truth, overheads, conditions):
    found = [each for each in verdicts(meeting_at(truth, *overheads), **conditions) if each.kind == "measured"]
    assert sum(each.low <= truth <= each.high for each in found) >= 90
    assert np.median([each.high - each.low for each in found]) <= 0.25 * truth
    assert np.median([abs(each.length - truth) for each in found]) <= 0.03 * truth
    assert all(each.low <= each.length <= each.high and each.up_to == 4096 for each in found)


def test_moods_of_the_machine_widen_the_interval():
    law = meeting_at(700, 100, 300)
    calm, moody = verdicts(law, noise=0.02), verdicts(law, noise=0.02, moods=0.08)
    measured = [each for each in moody if each.kind == "measured"]
    assert len(measured) >= 60
    assert sum(each.low <= 700 <= each.high for each in measured) >= 0.9 * len(measured)
    widths = [np.median([each.high / each.low for each in found if each.kind == "measured"]) for found in (calm, moody)]
    assert widths[1] > widths[0] ** 1.5
    assert widths[0] < 1.12


@pytest.mark.parametrize(
    "law",
    [
        lambda n: 0.7 if n < 900 else 1.4,
        lambda n: 0.95 if n < 900 else n / 900,
        lambda n: (n / 900) ** 0.5,
        lambda n: (n / 900) ** 2,
    ],
    ids=["a jump", "a kink", "flat", "steep"],
)
def test_other_shapes_of_a_crossover(law):
    found = [each for each in verdicts(law) if each.kind == "measured"]
    assert sum(each.low <= 900 <= each.high for each in found) >= 90
    assert np.median([each.high - each.low for each in found]) <= 0.25 * 900


@pytest.mark.parametrize(
    "law",
    [
        meeting_at(20_000, 100, 1000),
        lambda n: (900 / n) ** 0.5,  # ahead at short lengths alone
        lambda n: 1.3 if 256 <= n <= 1024 else 0.8,
        lambda n: 0.9,
    ],
    ids=["beyond the longest", "falling back", "ahead in the middle", "behind"],
)
def test_no_crossover_is_none(law):
    found = kinds(law)
    assert found["none"] >= 93
    assert not found["measured"] + found["from the first length"]


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
def test_a_mechanism_against_itself_does_not_win(noise):
    found = kinds(lambda n: 1.0, noise=noise)
    assert found["none"] + found["inconclusive"] >= 93
    assert found["none"] >= 50


def test_a_small_systematic_difference_does_not_win():
    assert kinds(lambda n: 1 + MARGIN / 2, noise=0.002) == {"none": 100}
    assert kinds(lambda n: 1 + 2 * MARGIN, noise=0.002) == {"from the first length": 100}


def test_always_ahead_is_from_the_first_length_on():
    found = verdicts(lambda n: 1.3 * (n / 128) ** 0.3)
    assert sum(each == Crossover("from the first length", 128.0, None, None, 4096) for each in found) >= 98


def test_of_two_crossovers_the_last_counts():
    """Ahead from 300 to 671, behind until 1500, ahead from there on."""
    found = verdicts(lambda n: exp(0.4 * sin(2 * np.pi * log(n / 1500) / log(5))) if n < 2243 else 1.5)
    assert sum(each.kind == "measured" and each.low <= 1500 <= each.high for each in found) >= 90


def test_a_crossover_just_above_the_first_length_is_held():
    found = verdicts(lambda n: n / 135)
    assert {each.kind for each in found} <= {"measured", "from the first length"}
    assert sum((each.low or each.length) <= 135 <= (each.high or 140) for each in found) >= 90


def test_a_first_length_that_is_not_surely_ahead_is_where_the_interval_begins():
    ratios = {128: [0.9, 0.95, 0.97, 1.02, 1.04, 1.08, 1.12, 1.15, 1.2]} | flat(lambda n: n / 120, GRID[1:])
    found = crossover(ratios)
    assert (found.kind, found.length, found.low) == ("measured", 128.0, 128.0)
    assert 128 < found.high < 256


def test_two_lengths_far_apart_are_joined_by_a_line():
    found = crossover({100: [0.5] * 9, 1600: [2.0] * 9})
    assert found.length == pytest.approx(400, rel=0.01)
    assert (found.kind, found.low, found.high) == ("inconclusive", 100.0, 1600.0)


def test_a_curve_that_misses_zero_has_its_end_there():
    x = np.log([600.0, 700.0, 800.0, 900.0])
    found = zeros(x, np.array([[1.0, -0.01, 1.0, 1.0], [-1.0, -1.0, 0.01, -1.0], [-0.3, -0.1, 0.1, 0.3]]), 1)
    assert found[:2] == pytest.approx([x[0], x[-1]])
    assert x[1] < found[2] < x[2]


# Too little to tell


def test_too_wide_an_interval_is_inconclusive():
    """Within five percent of each other from 128 to 2048."""
    found = verdicts(lambda n: (n / 600) ** 0.03 if n <= 2048 else 1.5, draws=30)
    doubtful = [each for each in found if each.kind == "inconclusive"]
    assert len(doubtful) >= 20
    assert all(each.high > 2 * each.low for each in doubtful)


def test_a_longest_length_that_does_not_tell_is_inconclusive():
    behind = {length: [0.8] * 9 for length in GRID[:-1]}
    wide = [0.5, 0.6, 0.7, 0.8, 0.9, 1.2, 1.3, 1.4, 1.5]
    maybe = [0.97, 0.98, 0.99, 1.02, 1.05, 1.06, 1.06, 1.07, 1.08]
    for unclear in (wide, maybe, [1.5] * 4, [0.9] * 4):
        assert crossover(behind | {4096: unclear}) == Crossover("inconclusive", None, None, None, 4096)
    for clear in ([0.9] * 5, [1.01] * 9, [0.5 * each for each in wide]):
        assert crossover(behind | {4096: clear}).kind == "none"
    assert crossover(behind | {4096: [1.5] * 5}).kind == "measured"


@pytest.mark.parametrize(("noise", "least", "most"), [(0.02, 0, 0), (0.05, 0, 2), (0.5, 90, 100)])
def test_too_noisy_to_tell(noise, least, most):
    random = np.random.default_rng(5)
    noisy = [too_noisy(np.exp(random.normal(0, noise, 9)).tolist()) for _ in range(100)]
    assert least <= sum(noisy) <= most


def test_outliers_are_not_noise_and_few_rounds_are():
    values = [1.1, 1.12, 1.13, 1.14, 1.15, 1.16]
    assert not too_noisy([*values, 1.15, 1.14, 1.13])
    assert not too_noisy([*values, 0.4, 0.4, 3.4])
    assert ahead([*values, 0.4, 0.4, 3.4])
    assert too_noisy(values[:4])
    assert not too_noisy(values[:5])


def test_the_bounds_of_a_ratio_hold_its_median():
    assert bounds([float(n) for n in range(9, 0, -1)]) == pytest.approx((2.0, 8.0))
    random = np.random.default_rng(6)
    for count in (5, 9, 15, 24):
        held = [bounds(np.exp(random.normal(0, 0.07, count)).tolist()) for _ in range(1000)]
        assert sum(low <= 1 <= high for low, high in held) >= 910
    assert np.median([high / low for low, high in held]) < 1.1


def test_ahead_needs_the_margin_and_the_whole_interval():
    assert ahead([1.03] * 5)
    assert not ahead([1.01] * 50)
    assert not ahead([1.03] * 4)
    assert ahead([0.92, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.15, 1.2])
    assert not ahead([0.92, 0.95, 1.02, 1.03, 1.05, 1.08, 1.12, 1.15, 1.2])


# What to measure next


def test_the_grid_comes_first_and_in_order():
    ratios = {}
    for length in GRID:
        assert next_length(ratios, reversed(GRID)) == length
        ratios[length] = [0.9] * 9
    assert next_length(ratios, GRID) is None


def test_bisection_closes_in_on_the_crossover():
    ratios, asked = flat(lambda n: n / 700, GRID), []
    while (length := next_length(ratios, GRID)) is not None:
        asked.append(length)
        ratios |= flat(lambda n: n / 700, [length])
    assert asked == [728, 608, 664]
    found = crossover(ratios)
    assert (found.kind, found.low, found.high) == ("measured", 664.0, 728.0)
    assert found.length == pytest.approx(700, rel=0.002)


@pytest.mark.parametrize("truth", [10, 33, 70, 150, 1000, 3000, 50_000])
def test_the_bracket_ends_within_ten_percent_or_neighbours(truth):
    grid = [2**n for n in range(3, 18)]
    ratios, asked = flat(lambda n: (n / truth) ** 2, grid), 0
    while (length := next_length(ratios, grid)) is not None:
        assert length not in ratios
        assert length < 64 or length % 8 == 0
        ratios |= flat(lambda n: (n / truth) ** 2, [length])
        asked += 1
    low = max(length for length in ratios if length <= truth)
    high = min(length for length in ratios if length > truth)
    assert high <= FINE * low or high - low <= (8 if low >= 64 else 1)
    assert asked <= 5


def test_nothing_to_refine():
    assert next_length(flat(lambda n: 0.9, GRID), GRID) is None
    assert next_length(flat(lambda n: 1.1, GRID), GRID) is None
    assert next_length(flat(lambda n: 900 / n, GRID), GRID) is None
    assert next_length(flat(lambda n: n / 600, [512]), [512]) is None


def test_the_widest_gap_of_the_bracket_is_next():
    ratios = flat(lambda n: 0.9 if n < 184 else 1.5, GRID) | {184: [1.01] * 9}
    assert next_length(ratios, GRID) == 152
    assert next_length(ratios | {152: [0.95] * 9}, GRID) == 216


def test_lengths_where_the_two_are_level_are_not_refined_for_ever():
    ratios, asked = flat(lambda n: 1.01 if n < 4000 else 1.5, GRID), 0
    while (length := next_length(ratios, GRID)) is not None:
        ratios |= flat(lambda n: 1.01 if n < 4000 else 1.5, [length])
        asked += 1
    assert asked <= LEVEL
    found = crossover(ratios)
    assert (found.kind, found.low, found.high) == ("inconclusive", 128.0, 4096.0)


def test_nothing_measured_is_an_error():
    with pytest.raises(ValueError, match="no length was measured"):
        crossover({})
    with pytest.raises(ValueError, match="no length was measured"):
        next_length({}, [])
