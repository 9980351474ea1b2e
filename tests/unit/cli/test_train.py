"""`anyformer train`: what it trains, keeps, prints and refuses."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anyformer.cli import main
from anyformer.tasks.copy import CopySeq2Seq

SMALL = ["--dim", "16", "--heads", "2", "--layers", "1", "--length", "6", "--batch-size", "4", "--steps", "12"]
COPY = ["train", "copy", "--mixer", "linear", *SMALL]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def lines(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def trained(capsys, *words):
    """What a run prints as JSON."""
    capsys.readouterr()
    assert main([*COPY, *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_the_last_metrics_are_printed(capsys):
    found = trained(capsys, "--folder", "a")
    assert found["task"]["task"] == "CopySeq2Seq"
    assert found["step"] == 12
    assert {name: found[name] for name in lines("a")[-1]} == lines("a")[-1]
    assert set(found["evaluation"]) == {
        "loss",
        "token_accuracy",
        "sequence_accuracy",
        "generated_token_accuracy",
        "generated_sequence_accuracy",
    }
    assert main(COPY) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["copy,", "after", "12", "steps"]
    assert f"token accuracy, evaluated {found['evaluation']['token_accuracy']:.4g}" in " ".join(out.split())
    assert "step 12/12: loss" in err


def test_every_option_reaches_the_run(capsys):
    usual = trained(capsys)
    for words in (
        ["--mixer", "softmax"],
        ["--encoder", "softmax"],
        ["--decoder", "softmax"],
        ["--cross", "softmax"],
        ["--layers", "2"],
        ["--heads", "4"],
        ["--activation", "elu1"],
        ["--data", "fixed"],
        ["--learning-rate", "0.01"],
        ["--warmup", "5"],
        ["--clip", "0.01"],
        ["--bfloat16"],
        ["--seed", "1"],
    ):
        assert trained(capsys, *words)["evaluation"]["loss"] != usual["evaluation"]["loss"], words
    assert trained(capsys, "--accumulate", "2")["loss"] == pytest.approx(usual["loss"], rel=1e-5)
    assert trained(capsys, "--data", "fixed")["task"]["cycle"] == 8
    assert trained(capsys, "--length", "9")["count"] == 40
    trained(capsys, "--evaluate-every", "5", "--folder", "a")
    assert [line["step"] for line in lines("a") if "evaluation" in line] == [5, 10, 12]


def test_a_place_may_have_a_mechanism_of_its_own(capsys):
    assert trained(capsys, "--encoder", "linformer")["parameters"] > trained(capsys)["parameters"]
    silent = trained(capsys, "--decoder", "lambda_layer")["evaluation"]  # does not stream, so it cannot write
    assert set(silent) == {"loss", "token_accuracy", "sequence_accuracy"}


class Stopping(CopySeq2Seq):
    """Ctrl-C in the middle of a step."""

    def batch(self, step):
        if step == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return super().batch(step)


def test_ctrl_c_is_130_and_resume_goes_on(capsys, monkeypatch):
    whole = trained(capsys, "--folder", "whole")
    with monkeypatch.context() as patch:
        patch.setattr("anyformer.tasks.copy.CopySeq2Seq", type("CopySeq2Seq", (Stopping,), {}))
        assert main([*COPY, "--folder", "cut"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("interrupted: --resume goes on\n")
    assert len(lines("cut")) == 8
    assert trained(capsys, "--folder", "cut", "--resume") == whole
    assert lines("cut") == lines("whole")
    assert trained(capsys, "--folder", "cut", "--resume") == whole  # nothing is left to do


def test_there_are_checkpoints_on_the_way(capsys, monkeypatch):
    saved = []
    monkeypatch.setattr("anyformer.training.loop.save", lambda folder, step, *_: saved.append(step))
    trained(capsys, "--folder", "a", "--steps", "40")
    assert saved == [*range(2, 41, 2)]
    saved.clear()
    trained(capsys, "--folder", "b", "--checkpoint-every", "5")
    assert saved == [5, 10, 12]


def test_a_loss_that_is_not_finite_is_1(capsys):
    assert main([*COPY, "--learning-rate", "1e30", "--folder", "a"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "failed: step 2 is not finite" in err
    assert "its batch is in a/diverged-2.safetensors" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], "the following arguments are required: TASK"),
        (["train", "cpoy"], "invalid choice: 'cpoy' (choose from "),
        (["train", "copy"], "the following arguments are required: --mixer; see `anyformer train copy --help`"),
        ([*COPY, "--mixer", "linaer"], "there is no mechanism 'linaer'; did you mean 'linear'?"),
        ([*COPY, "--cross", "sofmax"], "did you mean 'softmax'?"),
        ([*COPY, "--decoder", "linformer"], "the decoder's mixer 'linformer' cannot be causal; these can: softmax"),
        ([*COPY, "--cross", "local"], "cross 'local' has no cross-attention; these have: softmax"),
        ([*COPY, "--heads", "3"], "dim=16 does not divide into 3 heads"),
        ([*COPY, "--length", "0"], "length must be at least 1, not 0"),
        ([*COPY, "--steps", "0"], "steps must be at least 1, not 0"),
        ([*COPY, "--data", "old"], "invalid choice: 'old'"),
        ([*COPY, "--activation", "rleu"], "activation is one of 'relu', 'gelu', 'elu1', not 'rleu'"),
        ([*COPY, "--warmup", "12"], "warmup=12 must be from 0 to below steps=12"),
        ([*COPY, "--clip", "0"], "clip=0.0 must be above 0"),
        ([*COPY, "--accumulate", "5"], "a batch of 4 cannot be shared"),
        ([*COPY, "--seed", "-1"], "seed must be at least 0, not -1"),
        ([*COPY, "--device", "tpu"], "--device tpu is not to be had here"),
        ([*COPY, "--resume"], "--resume and --checkpoint-every need a --folder"),
        ([*COPY, "--checkpoint-every", "5"], "--resume and --checkpoint-every need a --folder"),
        ([*COPY, "--folder", "file"], "file is a file: name a folder"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(words, said, capsys):
    Path("file").touch()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_folder_keeps_its_run(capsys):
    trained(capsys, "--folder", "a")
    before = {path.name: path.read_bytes() for path in Path("a").iterdir()}
    for words, said in (
        ([], "a holds a run already: go on with it by --resume, or take another --folder"),
        (["--resume", "--steps", "13"], "of a run with other arguments: steps was 12 and is 13"),
        (["--resume", "--mixer", "softmax"], "of a run with other arguments: "),
        (["--resume", "--data", "fixed"], "task.cycle was None and is 8"),
    ):
        assert main([*COPY, "--folder", "a", *words]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert said in err
    assert {path.name: path.read_bytes() for path in Path("a").iterdir()} == before


def test_a_corrupt_checkpoint_is_one_sentence(capsys):
    trained(capsys, "--folder", "a")
    path = Path("a/last.safetensors")
    path.write_bytes(path.read_bytes()[:-7])
    assert main([*COPY, "--folder", "a", "--resume"]) == 2
    err = capsys.readouterr().err
    assert "a/last.safetensors is damaged or no checkpoint; delete it to resume from previous.safetensors" in err
    assert err.count("\n") == 1


def test_two_processes_answer_once_and_like_one(capsys, source):
    alone = trained(capsys)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "anyformer", *COPY, "--json"),
        ],
        env={**os.environ, "PYTHONPATH": str(source.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (found["step"], found["count"]) == (12, alone["count"])
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert found["evaluation"]["loss"] == pytest.approx(alone["evaluation"]["loss"], rel=1e-4)
