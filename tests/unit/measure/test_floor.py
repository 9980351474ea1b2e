"""The machine's limits and the floor under a time."""

import pytest
import torch

from anyformer.measure import floor
from anyformer.measure.floor import Limits, limits, moved_bytes


@pytest.mark.parametrize(("operations", "moved", "seconds"), [(400, 10, 4.0), (100, 60, 3.0), (0, 0, 0.0)])
def test_the_floor_is_the_larger_of_computing_and_moving(operations, moved, seconds):
    assert Limits(100.0, 20.0).floor(operations, moved) == seconds


def test_bytes_moved_are_those_of_each_tensor_once():
    assert moved_bytes(torch.empty(3, 5), torch.empty(2, dtype=torch.float64), torch.empty(4).bool()) == 60 + 16 + 4
    assert moved_bytes() == 0


def test_the_limits_come_from_the_fastest_round(monkeypatch):
    monkeypatch.setattr(floor, "SIDE", 16)
    monkeypatch.setattr(floor, "COPIED", 1024)
    ran = []

    def pretended(runs, *, seconds):
        ran.extend(runs.values())
        return {"product": [4.0, 2.0, 3.0], "copy": [0.5, 0.25, 1.0]}

    monkeypatch.setattr(floor, "rounds", pretended)
    assert limits() == Limits(2 * 16**3 / 2.0, 2 * 1024 / 0.25)
    for run in ran:
        run()  # as they would be timed
    assert len(ran) == 2
