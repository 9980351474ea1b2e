"""The referee's scheduler, on a machine and a clock that the test makes up."""

import random

import pytest

from anyformer.measure import crossing
from anyformer.measure.referee import GRID_SHARE, SHORT_OF_TIME, Field, Referee, grid, plan

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
WARM_UP = 2  # calls of each before the rounds, as on a real machine


class Machine:
    """Costs by law, a little noise, and a clock that only work moves."""

    disturbed = False

    def __init__(self, costs, noise=0.02, seed=0, refuses=(), interrupt_after=None):
        self.costs, self.noise, self.drawn, self.refuses = costs, noise, random.Random(seed), refuses
        self.now, self.said, self.measured, self.interrupt_after = 0.0, [], [], interrupt_after

    def clock(self):
        return self.now

    def tell(self, text, left):
        self.said.append((text, left))

    def call(self, cell, name):
        taken = self.costs[name](cell.length) * self.drawn.lognormvariate(0, self.noise)
        self.now += taken
        return taken

    def probe(self, cell, name):
        if (name, cell.length) in self.refuses:
            raise ValueError(f"{name} takes no {cell.length} tokens")
        return min(self.call(cell, name), self.call(cell, name))

    def measure(self, cell, names, seconds, at_least):
        if self.interrupt_after is not None and len(self.measured) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.measured.append((cell.field.title, cell.length, tuple(names)))
        end = self.now + seconds
        for name in names:
            for _ in range(WARM_UP):
                self.call(cell, name)
        taken = {name: [] for name in names}
        while len(taken[names[0]]) < at_least or (self.now < end and len(taken[names[0]]) < 25):
            for name in names:
                taken[name].append(self.call(cell, name))
        return taken


def quadratic(n):
    return 1e-3 + 4e-8 * n**2


def crossing_at(length):
    """Linear, and level with the quadratic at that length."""
    return lambda n: quadratic(length) * (0.3 + 0.7 * n / length)


def field(*names, mode="forward", lengths=LENGTHS, baselines=("softmax",), causal=False):
    return Field("op", causal, mode, names, baselines, lengths)


def rows(referee):
    return {
        (row["mechanism"], row["mode"]): row
        for row in referee.rows({}, lambda name, mode: 2.0 if name == "softmax" else 1.0)
    }


def test_crossings_are_found_and_closed_in_on():
    machine = Machine({"softmax": quadratic, "linear": crossing_at(700), "other": crossing_at(1500)})
    referee = Referee([field("linear", "other")])
    referee.run(machine, 600.0)
    for name, truth in (("linear", 700), ("other", 1500)):
        found = rows(referee)[name, "forward"]["crossover"]
        assert found["kind"] == "measured"
        assert found["low"] <= found["length"] <= found["high"]
        assert found["length"] == pytest.approx(truth, rel=0.1)
        assert found["high"] / found["low"] < 1.25
    assert {length for _, length, _ in machine.measured} > set(LENGTHS)


def test_nothing_is_closed_in_on_where_nothing_crosses():
    machine = Machine({"softmax": quadratic, "slow": lambda n: 3 * quadratic(n), "fast": lambda n: quadratic(n) / 3})
    referee = Referee([field("slow", "fast")])
    referee.run(machine, 600.0)
    assert [length for _, length, _ in machine.measured] == list(LENGTHS)
    assert rows(referee)["slow", "forward"]["crossover"] == {
        "kind": "none",
        "length": None,
        "low": None,
        "high": None,
        "up_to": 4096,
    }
    assert rows(referee)["fast", "forward"]["crossover"]["kind"] == "from the first length"


@pytest.mark.parametrize("budget", [2.0, 5.0, 20.0, 60.0, 120.0])
@pytest.mark.parametrize("slowness", [1.0, 10.0])
def test_the_budget_is_kept(budget, slowness):
    costs = {
        "softmax": quadratic,
        "linear": crossing_at(700),
        "slow": lambda n: 5e-3 + 1e-5 * n,
        "other": crossing_at(300),
    }
    machine = Machine({name: lambda n, cost=cost: slowness * cost(n) for name, cost in costs.items()})
    fields = [field("linear", "slow", "other", mode=m, causal=c) for m in ("forward", "train") for c in (False, True)]
    referee = Referee(fields)
    referee.run(machine, budget)
    assert machine.now <= budget
    assert referee.repeats  # and something was done with it
    assert all(left >= 0 for _, left in machine.said)


def test_short_of_time_the_long_lengths_are_left_out_and_said_to_be():
    machine = Machine({"softmax": lambda n: 1e-5 * n, "linear": lambda n: 2e-5 * n})
    referee = Referee([field("linear")])
    referee.run(machine, 1.0)
    row = rows(referee)["linear", "forward"]
    assert 0 < len(row["lengths"]) < len(LENGTHS)
    assert [n["length"] for n in row["left_out"]] == [n for n in LENGTHS if n not in row["lengths"]]
    assert {n["why"] for n in row["left_out"]} == {SHORT_OF_TIME}
    assert row["crossover"]["up_to"] == max(row["lengths"])


def test_the_grid_leaves_time_to_close_in():
    machine = Machine({"softmax": lambda n: 10 * quadratic(n), "linear": lambda n: 10 * crossing_at(700)(n)})
    referee = Referee([field("linear")])
    referee.run(machine, 60.0)
    assert any(length not in LENGTHS for _, length, _ in machine.measured)
    assert GRID_SHARE < 1


def test_a_refusal_is_a_reason_and_not_the_end():
    machine = Machine({"softmax": quadratic, "linear": crossing_at(700)}, refuses={("linear", 256)})
    referee = Referee([field("linear")])
    referee.run(machine, 600.0)
    row = rows(referee)["linear", "forward"]
    assert row["left_out"] == [{"length": 256, "why": "linear takes no 256 tokens"}]
    assert set(LENGTHS) - {256} <= set(row["lengths"])


def test_without_the_baseline_nobody_is_compared():
    machine = Machine({"softmax": quadratic, "linear": crossing_at(700)}, refuses={("softmax", 4096)})
    referee = Referee([field("linear")])
    referee.run(machine, 600.0)
    row = rows(referee)["linear", "forward"]
    assert row["left_out"] == [{"length": 4096, "why": "the baseline was left out"}]
    assert max(row["lengths"]) == 2048


def test_a_run_goes_on_where_another_stopped():
    costs = {"softmax": quadratic, "linear": crossing_at(700)}
    first = Machine(costs, interrupt_after=4)
    referee = Referee([field("linear")])
    with pytest.raises(KeyboardInterrupt):
        referee.run(first, 600.0)
    assert rows(referee)["linear", "forward"]["lengths"] == [128, 256, 512, 1024]
    second = Machine(costs)
    again = Referee([field("linear")], referee.repeats)
    again.run(second, 600.0)
    assert [length for _, length, _ in second.measured][:2] == [2048, 4096]
    assert not {128, 256} & {length for _, length, _ in second.measured}
    assert rows(again)["linear", "forward"]["crossover"]["kind"] == "measured"


def test_two_that_need_the_same_length_are_measured_together_and_later_ones_beside_them():
    machine = Machine({"softmax": quadratic, "a": crossing_at(700), "b": crossing_at(700), "c": crossing_at(720)})
    referee = Referee([field("a", "b", "c")])
    referee.run(machine, 600.0)
    for row in rows(referee).values():
        assert row["crossover"]["kind"] == "measured"
    cells = list(referee.repeats)
    assert len(cells) == len(set(cells))
    for taken in referee.repeats.values():  # a ratio is of rounds of the same run
        assert len({len(values) for values in taken.values()}) == 1


def test_decoding_has_two_baselines():
    machine = Machine(
        {"softmax": quadratic, "softmax, nothing cached": lambda n: 9 * quadratic(n), "linear": lambda n: 2e-3}
    )
    referee = Referee([field("linear", mode="decode", baselines=("softmax", "softmax, nothing cached"))])
    referee.run(machine, 60.0)
    found = referee.rows({}, lambda name, mode: 1.0)
    assert [row["against"] for row in found] == ["softmax", "softmax, nothing cached"]
    assert found[1]["ratios"][0]["median"] > found[0]["ratios"][0]["median"]


def test_memory_is_one_number_a_length():
    class Held(Machine):
        def probe(self, cell, name):
            return 0.01

        def measure(self, cell, names, seconds, at_least):
            assert at_least == 1
            return {name: [float(round(self.costs[name](cell.length)))] for name in names}

    machine = Held({"softmax": lambda n: 1e3 + n**2, "linear": lambda n: 1e5 + 50 * n})
    referee = Referee([field("linear", mode="train memory")])
    referee.run(machine, 60.0)
    row = rows(referee)["linear", "train memory"]
    assert row["unit"] == "bytes"
    assert row["crossover"]["kind"] == "measured"
    assert row["crossover"]["length"] == pytest.approx(340.6, rel=0.05)
    assert row["extrapolated"] is None
    assert row["exponent"]["median"] == pytest.approx(1.0, abs=0.05)


def test_rows_say_how_far_from_the_floor_and_how_cost_grows():
    machine = Machine({"softmax": lambda n: 1e-8 * n**2, "linear": lambda n: 1e-5 * n})
    referee = Referee([field("linear")])
    referee.run(machine, 60.0)
    floors = {("forward, full, op, 128", "linear"): 1e-5 * 64}
    (row,) = referee.rows(floors, lambda name, mode: 2.0 if name == "softmax" else 1.0)
    assert row["over_floor"][0]["median"] == pytest.approx(2.0, rel=0.05)
    assert row["over_floor"][1] is None
    assert row["exponent"]["low"] <= 1.0 <= row["exponent"]["high"] or row["exponent"]["median"] == pytest.approx(
        1, abs=0.05
    )
    assert row["against_exponent"]["median"] == pytest.approx(2, abs=0.05)
    assert (row["claimed_exponent"], row["against_claimed_exponent"]) == (1.0, 2.0)
    assert row["extrapolated"]["from"] == [128, 256, 512, 1024]
    assert row["extrapolated"]["length"] == pytest.approx(1000, rel=0.1)


def test_a_loaded_machine_is_told_from_a_quiet_one():
    machine = Machine({"softmax": quadratic, "linear": crossing_at(700)}, noise=1.5)
    referee = Referee([field("linear")])
    referee.run(machine, 600.0)
    assert "inconclusive" in rows(referee)["linear", "forward"]["status"]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((128, 4096), list(LENGTHS)),
        ((100, 450), [100, 200, 400, 450]),
        ((7, 7), [7]),
        ((3, 1000), [3, 6, 12, 24, 48, 96, 192, 384, 768, 1000]),
    ],
)
def test_a_grid_doubles_and_ends_where_it_should(ends, expected):
    assert grid(*ends) == expected


def test_a_plan_has_every_field_that_somebody_can_take():
    def refused(name, level, mode, causal):
        if name == "layered" and level == "op":
            return "it has no core"
        if name == "free" and causal:
            return "it cannot be causal"
        return "it does not stream" if name == "free" and mode == "decode" else ""

    lengths = {"forward": [1, 2], "train": [1, 2], "decode": [1, 2, 3]}
    asked = {"orders": [False, True], "modes": ["forward", "decode"], "lengths": lengths, "uncached": "softmax, bare"}
    fields, idle = plan(["free", "layered"], "softmax", levels=["op, else layer"], refused=refused, **asked)
    assert fields == [
        Field("op", False, "forward", ("free",), ("softmax",), (1, 2)),
        Field("layer", False, "forward", ("layered",), ("softmax",), (1, 2)),
        Field("layer", True, "forward", ("layered",), ("softmax",), (1, 2)),
        Field("layer", True, "decode", ("layered",), ("softmax", "softmax, bare"), (1, 2, 3)),
    ]
    assert idle == {}
    fields, idle = plan(["free", "layered"], "softmax", levels=["op"], refused=refused, **asked)
    assert [f.names for f in fields] == [("free",)]
    assert idle == {"layered": "it has no core"}


def test_enough_rounds_for_an_interval():
    assert crossing.REFINED >= crossing.ROUNDS >= 5


class Shared(Machine):
    """Somebody else uses it at some lengths, the first few times, and our threads wait for theirs."""

    def __init__(self, costs, lengths, times):
        super().__init__(costs)
        self.lengths, self.times = lengths, times

    def measure(self, cell, names, seconds, at_least):
        taken = super().measure(cell, names, seconds, at_least)
        tried = [length for _, length, _ in self.measured].count(cell.length)
        self.disturbed = cell.length in self.lengths and tried <= self.times
        return {name: [99.0] * len(values) for name, values in taken.items()} if self.disturbed else taken


def test_what_was_disturbed_is_measured_again():
    machine = Shared({"softmax": quadratic, "linear": crossing_at(700)}, {128, 4096}, times=2)
    referee = Referee([field("linear")])
    referee.run(machine, 600.0)
    row = rows(referee)["linear", "forward"]
    assert [length for _, length, _ in machine.measured].count(4096) == 3
    assert set(row["status"]) == {"measured"}
    assert row["crossover"]["kind"] == "measured"
    assert row["crossover"]["length"] == pytest.approx(700, rel=0.1)
    assert max(value["high"] for value in row["values"]["mechanism"]) < 99  # disturbed rounds are kept, not counted
    assert referee.disturbed == [f"forward, full, op, {n}" for n in ("128", "4096", "128 (2)", "4096 (2)")]


def test_what_stays_disturbed_says_nothing():
    machine = Shared({"softmax": quadratic, "linear": crossing_at(700)}, {512, 4096}, times=99)
    referee = Referee([field("linear")])
    referee.run(machine, 600.0)
    row = rows(referee)["linear", "forward"]
    status = dict(zip(row["lengths"], row["status"], strict=True))
    assert status[512] == status[4096] == "inconclusive"
    assert status[1024] == "measured"
    assert row["crossover"]["kind"] == "inconclusive"
    again = Referee([field("linear")], referee.repeats, referee.disturbed)
    assert rows(again) == rows(referee)
