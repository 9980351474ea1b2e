"""Exponents that are known beforehand, and the table of a published study."""

import numpy as np
import pytest

from anyformer.measure.scaling import fit, full_quadratic, log_medians, old_method, steady

LENGTHS = [128, 256, 512, 1024, 2048, 4096]
STUDY = ([8, 16, 32, 64], [221.0, 236.0, 287.0, 416.0], [1738.0, 3004.0, 5373.0, 10071.0])


def law(power, overhead, lengths=LENGTHS):
    """Seconds that grow with N^power; the constant part is what `overhead` tokens take."""
    return [1e-6 * (overhead**power + length**power) for length in lengths]


def noisy(seconds, random, count=9, noise=0.05):
    return [(each * np.exp(random.normal(0, noise, count))).tolist() for each in seconds]


@pytest.mark.parametrize("overhead", [1, 500])
@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_an_exponent_without_noise_is_found(power, overhead):
    found = fit(LENGTHS, [[seconds] * 3 for seconds in law(power, overhead)])
    assert found == pytest.approx((power,) * 3, abs=0.006)


@pytest.mark.parametrize(("power", "overhead"), [(1.0, 1), (1.0, 500), (1.5, 300), (2.0, 500)])
def test_the_interval_holds_the_exponent(power, overhead):
    random = np.random.default_rng(1)
    found = [fit(LENGTHS, noisy(law(power, overhead), random)) for _ in range(100)]
    assert sum(each.low <= power <= each.high for each in found) >= 90
    assert np.median([each.high - each.low for each in found]) < 0.2
    assert all(each.low <= each.median <= each.high for each in found)


def test_linear_and_quadratic_time_are_told_apart_over_four_lengths():
    random = np.random.default_rng(2)
    linear, quadratic = (fit(LENGTHS[:4], noisy(law(power, 100, LENGTHS[:4]), random)) for power in (1.0, 2.0))
    assert linear.high < 1.5 < quadratic.low


def test_outlying_rounds_hardly_move_an_exponent():
    rounds = noisy(law(2.0, 500), np.random.default_rng(3))
    for values in rounds:
        values[4] *= 3
        values[7] *= 3
    found = fit(LENGTHS, rounds)
    assert found.low <= 2.0 <= found.high
    assert found.high - found.low < 0.3


@pytest.mark.parametrize("seconds", [[3.0] * 6, [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]])
def test_what_does_not_grow_has_exponent_zero(seconds):
    assert fit(LENGTHS, [[each] * 5 for each in seconds]) == (0.0, 0.0, 0.0)


def test_a_constant_part_is_never_below_zero():
    """N - 50 would be a line through less than nothing; with a >= 0 it is a steeper power."""
    assert fit(LENGTHS, [[length - 50.0] * 3 for length in LENGTHS]).median > 1.05


def test_three_lengths_have_no_exponent():
    rounds = [[seconds] * 5 for seconds in law(2.0, 1)]
    assert fit(LENGTHS[:3], rounds[:3]) is None
    assert fit([128, 256, 512, 512], rounds[:4]) is None
    assert fit(LENGTHS[:4], rounds[:4]) is not None


def test_every_length_needs_its_rounds():
    with pytest.raises(ValueError, match="zip"):
        fit(LENGTHS, [[1.0]] * 5)
    for bad in ([], [1.0, 0.0], [float("nan"), 1.0], [1.0, float("nan")], [float("inf")]):
        with pytest.raises(ValueError, match="measure it again"):
            fit(LENGTHS, [[1.0]] * 5 + [bad])


def test_rounds_are_drawn_within_their_length_and_always_alike():
    rounds = [[1.0, 2.0, 3.0], [10.0, 12.0, 14.0, 16.0, 18.0]]
    medians = np.exp(log_medians(rounds, 400))
    assert medians.shape == (401, 2)
    assert medians[0] == pytest.approx([2.0, 14.0])
    assert set(medians[1:, 0].round(6)) == {1.0, 2.0, 3.0}
    assert set(medians[1:, 1].round(6)) == {10.0, 12.0, 14.0, 16.0, 18.0}
    assert np.array_equal(medians, np.exp(log_medians(rounds, 400)))


def test_a_far_off_round_is_pulled_in_and_the_others_are_left_alone():
    values = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 50.0]
    found = np.exp(steady(values[::-1]))
    assert found[:8] == pytest.approx(values[:8])
    assert 1.7 < found[8] < 2.1


def test_the_table_of_the_study():
    assert old_method(*STUDY) == pytest.approx(3148.7, abs=0.05)
    assert full_quadratic(*STUDY) == pytest.approx(6219, abs=0.5)


@pytest.mark.parametrize("method", [old_method, full_quadratic])
def test_lines_that_meet_twice_meet_at_the_larger_root(method):
    lengths = [1, 2, 4, 8, 16]
    assert method(lengths, [24.0 + n * n for n in lengths], [10.0 * n for n in lengths]) == pytest.approx(6.0)


@pytest.mark.parametrize("method", [old_method, full_quadratic])
@pytest.mark.parametrize(
    ("softmax", "linear"),
    [
        (lambda n: 50 + n * n, lambda n: 10 * n),  # behind everywhere: they never meet
        (lambda n: 50 + n * n, lambda n: 1 + n),  # ahead everywhere
        (lambda n: 500 - n * n, lambda n: 10 * n),  # ahead, then behind
        (lambda n: 495 - n * n, lambda n: 500 - 10 * n),  # behind, ahead, then behind again
        (lambda n: 300 + n * n, lambda n: 299 - 10 * n),  # they would meet below zero
    ],
)
def test_no_coming_from_behind_is_no_crossover(method, softmax, linear):
    lengths = [1, 2, 4, 8, 16]
    assert method(lengths, [softmax(n) for n in lengths], [linear(n) for n in lengths]) is None


def test_too_few_lengths_for_a_regression():
    with pytest.raises(ValueError, match="3 coefficients need as many lengths, not 2"):
        full_quadratic([8, 16], [1.0, 2.0], [1.0, 2.0])
