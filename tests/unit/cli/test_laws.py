"""`anyformer laws`: verdicts, exit status, and what is kept when it is interrupted."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest

from anyformer.cli import main
from anyformer.laws import LAWS, Outcome

MODULES = """
import torch
from torch import nn


class Fair(nn.Module):
    def forward(self, x, context=None, *, keep=None):
        if context is not None or keep is not None:
            raise ValueError("this module takes neither a context nor a keep mask")
        return x.cumsum(1)


class Leaky(Fair):
    def forward(self, x, context=None, *, keep=None):
        return super().forward(x, context, keep=keep) + 1e-9 * x.mean(1, keepdim=True)


class Crashing(nn.Module):
    def forward(self, x, context=None, *, keep=None):
        raise RuntimeError("on purpose")
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A module of somebody else's in the working folder."""
    (tmp_path / "theirs_for_laws.py").write_text(MODULES)
    monkeypatch.chdir(tmp_path)
    yield "theirs_for_laws"
    sys.modules.pop("theirs_for_laws", None)


def test_the_table_shows_every_verdict(capsys):
    assert main(["laws", "softmax", "--law", "batch", "--law", "limit"]) == 0
    out, err = capsys.readouterr()
    heading, row, key = out.splitlines()
    assert heading.split() == ["mechanism", "batch", "limit"]
    assert row.split() == ["softmax", "✓", "\N{EN DASH}"]
    assert key.startswith("✓ passes")
    assert err.splitlines() == ["softmax  batch  pass", "softmax  limit  not claimed"]


def test_json_has_every_verdict_and_is_alone(capsys):
    assert main(["laws", "softmax", "local", "--law", "batch", "--law", "limit", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [(o["mechanism"], o["law"], o["status"]) for o in found] == [
        ("softmax", "batch", "pass"),
        ("softmax", "limit", "not claimed"),
        ("local", "batch", "pass"),
        ("local", "limit", "pass"),
    ]
    assert set(found[0]) == {"mechanism", "law", "status", "note"}
    assert err == ""


def test_laws_run_in_their_own_order_whatever_was_asked(capsys):
    assert main(["laws", "softmax", "--law", "limit", "--law", "batch", "--json"]) == 0
    order = [o["law"] for o in json.loads(capsys.readouterr().out)]
    assert order == [law for law in LAWS if law in ("batch", "limit")]


def test_a_name_means_all_its_variants(capsys, drop, monkeypatch):
    drop()
    asked = []
    monkeypatch.setattr("anyformer.laws.judge", lambda subject, laws: asked.append(subject.name) or [])
    assert main(["laws", "mean_of_all", "softmax", "--json"]) == 0
    assert main(["laws", "mean_of_all:doubled", "--json"]) == 0
    assert asked == ["mean_of_all:plain", "mean_of_all:doubled", "mean_of_all:halved", "softmax", "mean_of_all:doubled"]
    assert capsys.readouterr().out == "[]\n" * 2


def test_a_foreign_module_that_obeys_passes(capsys, theirs):
    assert main(["laws", f"{theirs}:Fair", "--causal", "--law", "causal", "--law", "batch", "--json"]) == 0
    assert {o["status"] for o in json.loads(capsys.readouterr().out)} == {"pass"}


@pytest.mark.parametrize(("name", "law"), [("Leaky", "causal"), ("Crashing", "batch")])
def test_a_failing_foreign_module_is_exit_status_1(capsys, theirs, name, law):
    target = f"{theirs}:{name}"
    assert main(["laws", target, "--causal", "--law", law]) == 1
    out = capsys.readouterr().out
    assert "✗" in out
    note = out.splitlines()[-1]
    assert note.startswith(f"{target}: {law}: ")
    assert ("future" if name == "Leaky" else "on purpose") in note
    assert main(["laws", target, "--causal", "--law", law, "--json"]) == 1
    (outcome,) = json.loads(capsys.readouterr().out)
    assert outcome["status"] == "fail"


def test_one_failure_among_many_is_exit_status_1(capsys, theirs):
    assert main(["laws", "softmax", f"{theirs}:Leaky", "--causal", "--law", "causal", "--json"]) == 1
    assert [o["status"] for o in json.loads(capsys.readouterr().out)] == ["pass", "fail"]


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_keeps_what_was_done(capsys, monkeypatch, as_json):
    def judge(subject, laws):
        yield Outcome(subject.name, "formula", "pass", "")
        yield Outcome(subject.name, "causal", "fail", "on purpose")
        raise KeyboardInterrupt

    monkeypatch.setattr("anyformer.laws.judge", judge)
    assert main(["laws", "softmax", *(["--json"] if as_json else [])]) == 130
    out = capsys.readouterr().out
    if as_json:
        assert [o["law"] for o in json.loads(out)] == ["formula", "causal"]
    else:
        assert out.splitlines()[1].split() == ["softmax", "✓", "✗"]
        assert out.splitlines()[-1] == "softmax: causal: on purpose"


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the test's own parent made of it
from anyformer.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_real_interrupt_keeps_what_was_done():
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "laws", "--law", "batch", "--law", "stream", "--law", "formula"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
    )
    first = running.stderr.readline()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130
    assert "Traceback" not in err
    mechanism, law, status = first.split()
    heading, row, *_ = out.splitlines()
    assert heading.split()[1:] == ["formula", "stream", "batch"]
    assert (row.split()[0], law, status) == (mechanism, "formula", "pass")
    assert "✓" in row


def test_a_closed_pipe_leaves_the_verdict_standing(theirs):
    running = subprocess.Popen(
        [sys.executable, "-m", "anyformer", "laws", f"{theirs}:Leaky", "--causal", "--law", "causal", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    running.stdout.close()
    assert running.stderr.read() == b""
    running.stderr.close()
    assert running.wait(timeout=120) == 1


def test_an_ascii_console_gets_words(capsys, monkeypatch, theirs):
    console = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", console)
        assert main(["laws", "softmax", f"{theirs}:Leaky", "--causal", "--law", "causal"]) == 1
    assert capsys.readouterr().err.isascii()
    console.seek(0)
    _, softmax, leaky, *_ = console.read().splitlines()
    assert softmax.split() == ["softmax", "yes"]
    assert leaky.split()[1] == "FAIL"
