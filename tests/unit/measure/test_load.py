"""Others are noticed, and we are not taken for others."""

import os
import subprocess
import sys
from time import perf_counter

import pytest

from anyformer.measure import load
from anyformer.measure.load import Reading, disturbed, others, reading


def test_cores_of_others_are_what_is_busy_and_not_ours():
    assert others(Reading(0.0, 100.0, 5.0), Reading(10.0, 130.05, 15.0)) == pytest.approx(2.0)
    assert others(Reading(0.0, 100.0, 5.0), Reading(10.0, 109.0, 15.0)) == 0.0
    assert others(None, Reading(0.0, 0.0, 0.0)) is None


def test_idle_cores_may_be_used_by_others(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert not disturbed(4.2, threads=4)
    assert disturbed(4.4, threads=4)
    assert disturbed(0.5, threads=8)
    assert not disturbed(0.2, threads=16)
    assert not disturbed(None, threads=8)


def test_a_system_that_does_not_tell_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(load, "Path", lambda _: tmp_path / "missing")
    assert reading() is None


@pytest.mark.skipif(reading() is None, reason="only Linux tells")
def test_a_busy_process_is_seen():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before, began = reading(), perf_counter()
        while perf_counter() - began < 1.0:
            pass
        assert others(before, reading()) > 0.3  # a whole core, if it gets one
    finally:
        busy.kill()
        busy.wait()
