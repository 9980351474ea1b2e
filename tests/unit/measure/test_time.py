"""Rounds and statistics, on a clock that the test moves itself."""

import pytest

from anyformer.measure import time
from anyformer.measure.time import Interval, geometric_mean, interval, ratio, rounds


@pytest.fixture
def clock(monkeypatch):
    """Makes runs that take so many seconds on a clock of its own, and tells in which order they ran."""
    moment, order = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: moment[0])

    def taking(**seconds):
        def run(name):
            def call():
                order.append(name)
                moment[0] += seconds[name]

            return call

        return {name: run(name) for name in seconds}

    return taking, order


def test_rounds_fill_the_time_given(clock):
    taking, order = clock
    taken = rounds(taking(a=0.25, b=0.5), seconds=10.0)
    assert {name: len(values) for name, values in taken.items()} == {"a": 12, "b": 12}  # 1.5 warming up, 0.75 a round
    assert taken == {"a": [0.25] * 12, "b": [0.5] * 12}
    assert len(order) == 2 * 12 + 4


def test_variants_take_turns_at_being_first(clock):
    taking, order = clock
    rounds(taking(a=1.0, b=1.0, c=1.0), seconds=0.0, at_least=4)
    assert "".join(order[6:]) == "abcbcacababc"


def test_no_fewer_rounds_than_asked(clock):
    taking, _ = clock
    assert len(rounds(taking(a=100.0), seconds=1.0, at_least=7)["a"]) == 7


def test_no_more_rounds_than_allowed(clock):
    taking, _ = clock
    assert len(rounds(taking(a=1.0), seconds=1e9, at_most=9)["a"]) == 9


def test_short_runs_are_repeated_within_a_sample(clock):
    taking, order = clock
    taken = rounds(taking(a=0.001953125), seconds=0.0, at_least=2)  # 5 ms / 1.95 ms: three calls
    assert taken["a"] == [0.001953125] * 2
    assert len(order) == 2 + 2 * 3


def test_an_interval_is_a_median_with_its_spread():
    values = [float(n) for n in range(1, 102)]
    found = interval(values)
    assert found.median == 51.0
    assert 35 < found.low < 51 < found.high < 67  # the median of 101 uniform values has a deviation of 5
    assert found == interval(values)
    assert interval([3.0] * 5) == Interval(3.0, 3.0, 3.0)


def test_more_values_narrow_the_interval():
    few, many = interval([1.0, 2.0, 3.0, 4.0] * 2), interval([1.0, 2.0, 3.0, 4.0] * 50)
    assert many.high - many.low < few.high - few.low


def test_an_outlier_does_not_move_a_median():
    assert interval([1.0, 1.0, 1.0, 1.0, 1e6]).median == 1.0


def test_a_ratio_is_taken_round_by_round():
    """A slow while slows both variants of a round, and leaves their ratio alone."""
    slow = [1.0, 10.0, 1.0, 100.0, 1.0]
    assert ratio([3 * s for s in slow], slow) == Interval(3.0, 3.0, 3.0)
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0, 2.0], [1.0])


def test_a_geometric_mean():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([7.0]) == pytest.approx(7.0)


def test_what_runs_before_a_sample_is_not_timed(clock):
    taking, order = clock
    runs, preparing = taking(a=1.0, b=2.0), taking(back=100.0)
    taken = rounds(runs, seconds=0.0, at_least=3, before={"b": preparing["back"]})
    assert taken == {"a": [1.0] * 3, "b": [2.0] * 3}
    assert order.count("back") == 4  # once to warm up, and before each of three samples
    assert all(order[n + 1] == "b" for n, name in enumerate(order) if name == "back")


def test_a_sample_has_no_more_calls_than_allowed(clock):
    taking, order = clock
    rounds(taking(a=1e-5), seconds=0.0, at_least=2, most_calls=7)
    assert len(order) == 2 + 2 * 7
