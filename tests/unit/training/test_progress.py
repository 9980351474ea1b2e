"""What a run says while it runs."""

import io
import sys

import pytest
from unit.training.tiny import run

from anyformer.training import progress
from anyformer.training.progress import Shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    moment = [100.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: moment[0])
    return moment


def told(clock, *, quiet=False):
    """Ten steps of three seconds and 60 tokens each, of which two were done before."""
    with Shown(done=2, steps=10, unit="tokens", quiet=quiet) as shown:
        for step in range(3, 11):
            clock[0] += 3
            shown.step(step, 0.5, 60)


def test_elsewhere_than_on_a_terminal_it_is_a_line_every_few_seconds(clock, capsys):
    told(clock)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "step 4/10: loss 0.5, 20 tokens/s, 0:00:18 left",
        "step 6/10: loss 0.5, 20 tokens/s, 0:00:12 left",
        "step 8/10: loss 0.5, 20 tokens/s, 0:00:06 left",
        "step 10/10: loss 0.5, 20 tokens/s, 0:00:00 left",
    ]


def test_on_a_terminal_it_is_a_bar(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", Terminal())
    told(clock)
    said = sys.stderr.getvalue()
    assert "10/10" in said
    assert "loss 0.5, 20 tokens/s, 0:00:00 left" in said
    assert "step 10/10" not in said


def test_quiet_is_silent(clock, capsys, monkeypatch):
    told(clock, quiet=True)
    run(steps=3)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", Terminal())
    told(clock, quiet=True)
    assert sys.stderr.getvalue() == ""


def test_a_run_tells_its_scores(capsys):
    run(steps=14, quiet=False)
    out, err = capsys.readouterr()
    assert out == ""
    scores, last, final = err.splitlines()
    assert scores.startswith("step 7: loss 0.")
    assert last.startswith("step 14/14: loss 0.")
    assert "points/s" in last
    assert final.startswith("step 14: loss 0.")
