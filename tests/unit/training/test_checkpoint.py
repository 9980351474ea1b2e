"""Killed runs, full disks and damaged files: a run goes on as if nothing had been, or says why it does not."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from unit.training import tiny
from unit.training.tiny import Points, run, small

from anyformer.training import checkpoint
from anyformer.training.checkpoint import LAST, PREVIOUS, random_state, seed_all, set_random_state

CPU = torch.device("cpu")


def assert_equal(folder, other):
    """The same metrics, model, optimizer and random state, to the last bit."""
    for name in ("metrics.jsonl", LAST):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name


def interrupted(monkeypatch, folder, step, **options):
    """A run that dies after a step, before it could save anything."""
    batch = Points.batch

    def dying(self, at):
        if at == step:
            raise RuntimeError("died")
        return batch(self, at)

    with monkeypatch.context() as patch:
        patch.setattr(Points, "batch", dying)
        with pytest.raises(RuntimeError, match="died"):
            run(folder=folder, checkpoint_every=5, **options)


# Going on


def test_a_run_killed_at_any_moment_ends_like_one_that_was_not(tmp_path, source):
    steps, draw = 120, random.Random(time.time_ns())

    def begin(name):
        return subprocess.Popen(
            [sys.executable, tiny.__file__, str(tmp_path / name), str(steps)],
            env={**os.environ, "PYTHONPATH": str(source.parent), "OMP_NUM_THREADS": "1"},
        )

    whole, killed = begin("whole"), tmp_path / "killed"
    for stop in sorted(draw.sample(range(2, steps // 2), 3)):
        process = begin("killed")
        while process.poll() is None and lines_of(killed) < stop:
            time.sleep(0.001)
        time.sleep(draw.random() * 0.01)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        assert stop <= lines_of(killed) < steps
    assert begin("killed").wait(60) == whole.wait(60) == 0
    assert lines_of(killed) == steps
    assert_equal(killed, tmp_path / "whole")


def lines_of(folder):
    try:
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.Adam, lr=1e-2, amsgrad=True),
        partial(torch.optim.SGD, lr=1e-2),
        partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    ],
)
@pytest.mark.parametrize("step", [3, 13, 35])  # before the first checkpoint, between two, just after one
def test_any_optimizer_goes_on(tmp_path, monkeypatch, optimizer, step):
    options = {"optimizer": optimizer, "warmup": 4, "final": 0.2, "log_every": 3, "accumulate": 2}
    whole = run(folder=tmp_path / "whole", checkpoint_every=5, **options)
    interrupted(monkeypatch, tmp_path / "cut", step, **options)
    assert run(folder=tmp_path / "cut", checkpoint_every=5, resume=True, **options) == whole
    assert_equal(tmp_path / "cut", tmp_path / "whole")


def test_a_finished_run_is_only_read_again(tmp_path):
    lines, before = run(folder=tmp_path), (tmp_path / LAST).read_bytes()
    model = small()
    assert run(model, folder=tmp_path, resume=True) == lines
    assert (tmp_path / LAST).read_bytes() == before
    assert torch.equal(model[0].weight, load_file(tmp_path / LAST)["model.0.weight"])


def test_a_run_in_a_used_folder_must_say_that_it_goes_on(tmp_path):
    run(folder=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="holds a run already: go on with it by resume=True, or take another folder"):
        run(folder=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_tied_and_transposed_weights_come_back(tmp_path, monkeypatch):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.a, self.b, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.b.weight = self.a.weight
            self.out.weight = nn.Parameter(torch.randn(4, 2).T)
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.seen += 1
            return self.out(self.b(self.a(x).tanh()))

    whole, again = Tied(), Tied()
    run(whole, folder=tmp_path / "whole")
    interrupted(monkeypatch, tmp_path / "cut", 12, model=Tied())
    run(again, folder=tmp_path / "cut", resume=True)
    assert again.a.weight is again.b.weight
    assert again.seen == whole.seen > 40
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_all_random_numbers_go_on():
    def draw():
        return torch.rand(3).tolist(), [random.random(), random.gauss(0, 1)], np.random.rand(3).tolist()  # noqa: NPY002

    seed_all(1, 0)
    draw()
    state = random_state(CPU)
    expected = draw()
    draw()
    set_random_state(state, CPU)
    assert draw() == expected
    seed_all(1, 1)
    assert all(a != b for a, b in zip(draw(), expected, strict=True))


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 2.0}, "clip was 1.0 and is 2.0"),
        ({"steps": 50}, "steps was 40 and is 50"),
        ({"seed": 9}, "seed was 0 and is 9"),
        ({"optimizer": partial(torch.optim.AdamW, lr=3e-2)}, r"optimizer.group 0.lr was 0.01 and is 0.03"),
        ({"optimizer": partial(torch.optim.Adam, lr=1e-2)}, "optimizer.kind was 'AdamW' and is 'Adam'"),
        ({"model": small(0.5)}, "model.modules.2.p was 0.2 and is 0.5"),
        ({"model": small().double()}, r"model.tensors.0.weight was 'float32 \(16, 4\)' and is 'float64 \(16, 4\)'"),
    ],
)
def test_other_arguments_are_refused_and_nothing_changes(tmp_path, options, message):
    run(folder=tmp_path, clip=1.0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=message) as refusal:
        run(folder=tmp_path, resume=True, **{"clip": 1.0, **options})
    assert str(refusal.value).endswith("resume with the same ones, or take another folder")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_damaged_checkpoint_is_refused_wherever_it_is_damaged(tmp_path):
    run(folder=tmp_path, checkpoint_every=25)
    path, draw = tmp_path / LAST, random.Random(0)
    good = path.read_bytes()
    header = int.from_bytes(good[:8], "little")
    places = [*range(12), *draw.sample(range(8, 8 + header), 60), *draw.sample(range(8 + header, len(good)), 60)]
    broken = [good[:at] + bytes([good[at] ^ 1 << draw.randrange(8)]) + good[at + 1 :] for at in places]
    broken += [good[:size] for size in (0, 5, 8, 100, 8 + header, len(good) - 1)] + [good + b"\0", b"\0" * 1000]
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"last\.safetensors is damaged .* resume from previous\.safetensors"):
            run(folder=tmp_path, resume=True)
    path.unlink()
    assert run(folder=tmp_path, resume=True)[-1]["step"] == 40
    assert path.read_bytes() == good


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    save_file({"weight": torch.ones(3)}, tmp_path / LAST)
    with pytest.raises(ValueError, match="is damaged or no checkpoint; delete it to start anew"):
        run(folder=tmp_path, resume=True)


def test_metrics_that_lost_lines_are_refused(tmp_path):
    run(folder=tmp_path)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"metrics\.jsonl is shorter than when the checkpoint was written: restore it"):
        run(folder=tmp_path, resume=True)


# What a full disk or a crash leaves


@pytest.mark.parametrize(
    ("place", "call", "file"),  # the third checkpoint; each flushes the metrics, its file and the folder
    [("save_file", 3, LAST), ("flush", 7, "metrics.jsonl"), ("flush", 8, LAST), ("flush", 9, LAST)],
)
def test_a_full_disk_leaves_a_good_checkpoint(tmp_path, monkeypatch, place, call, file):
    whole = run(folder=tmp_path / "whole", checkpoint_every=5)
    folder, real, calls = tmp_path / "full", getattr(checkpoint, place), []

    def full(*what):
        calls.append(what)
        if len(calls) >= call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*what)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, place, full)
        with pytest.raises(OSError, match=f"{file} could not be written .*No space left .*; make room, then resume"):
            run(folder=folder, checkpoint_every=5)
    assert sorted(path.name for path in folder.iterdir()) == [LAST, "metrics.jsonl", PREVIOUS]
    assert run(folder=folder, checkpoint_every=5, resume=True) == whole
    assert_equal(folder, tmp_path / "whole")


def test_a_file_that_the_system_cuts_short_leaves_the_last_good_checkpoint(tmp_path):
    """Not simulated: the kernel refuses to write beyond a size."""
    run(folder=tmp_path, steps=10)
    before = (tmp_path / LAST).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=r"last\.safetensors could not be written .*; make room, then resume"):
            checkpoint.write(tmp_path / LAST, {"x": torch.zeros(10_000)}, {}, previous=tmp_path / PREVIOUS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / LAST).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [LAST, "metrics.jsonl"]


@pytest.mark.parametrize("moment", [1, 2, 3, 4])
def test_a_crash_between_any_two_steps_of_saving_loses_nothing(tmp_path, monkeypatch, moment):
    """os.replace is called once for the first checkpoint and twice for every later one."""
    whole = run(folder=tmp_path / "whole", checkpoint_every=5)
    replace, calls = os.replace, []

    def crashing(*paths):
        calls.append(paths)
        if len(calls) == moment:
            raise RuntimeError("crash")
        replace(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crashing)
        with pytest.raises(RuntimeError, match="crash"):
            run(folder=tmp_path / "cut", checkpoint_every=5)
    assert run(folder=tmp_path / "cut", checkpoint_every=5, resume=True) == whole
    assert_equal(tmp_path / "cut", tmp_path / "whole")


def test_the_one_before_is_kept(tmp_path):
    run(folder=tmp_path, steps=10, checkpoint_every=5)
    (tmp_path / LAST).unlink()
    found = []

    class Counting(Points):
        def batch(self, step):
            found.append(step)
            return super().batch(step)

    run(task=Counting(), folder=tmp_path, steps=10, resume=True)
    assert found == [5, 6, 10**6, 7, 8, 9, 10**6]  # the two others are evaluations
