"""Two processes train as one does."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from unit.training.tiny import run, small

from anyformer.training.checkpoint import LAST

TOGETHER = """
import sys
from pathlib import Path
import torch.distributed as dist
from unit.training.tiny import ITEMS, Points, run, small

folder = Path(sys.argv[1])

class Together(Points):
    dies = None

    def batch(self, step):
        if step == self.dies:
            raise RuntimeError("died")
        return super().batch(step)

    def loss(self, model, batch):
        assert dist.get_world_size() == 2
        assert len(batch["x"]) < ITEMS or not model.training
        return super().loss(model, batch)
"""

COMPARED = """
for accumulate in (1, 3):
    run(small(0.0), Together(), folder=folder / str(accumulate), accumulate=accumulate, clip=0.5)

run(small(), Together(), folder=folder / "whole", checkpoint_every=5)
dying = Together()
dying.dies = 13
try:
    run(small(), dying, folder=folder / "cut", checkpoint_every=5)
except RuntimeError as error:
    assert str(error) == "died"
run(small(), Together(), folder=folder / "cut", checkpoint_every=5, resume=True)
"""

ENDLESS = """
run(small(), Together(), folder=folder, steps=10**6)
"""


@pytest.fixture
def torchrun(source, tmp_path):
    """Starts a script in two processes."""
    paths = os.pathsep.join([str(source.parent), str(Path(__file__).parents[2])])

    started = []

    def start(script):
        path = tmp_path / "script.py"
        path.write_text(TOGETHER + script)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            path,
            tmp_path,
        ]
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_train_as_one(torchrun, tmp_path):
    assert torchrun(COMPARED).wait(120) == 0
    alone = small(0.0)
    expected = run(alone, clip=0.5)
    for folder in (tmp_path / "1", tmp_path / "3"):
        lines = lines_of(folder)
        assert [line["count"] for line in lines] == [line["count"] for line in expected]
        for name in ("loss", "gradient_norm", "accuracy"):
            assert [line[name] for line in lines] == pytest.approx([line[name] for line in expected], rel=1e-5)
        assert lines[-1]["evaluation"] == pytest.approx(expected[-1]["evaluation"], rel=1e-5)
        weights = load_file(folder / LAST)
        for name, tensor in alone.state_dict().items():
            assert weights[f"model.{name}"].numpy() == pytest.approx(tensor.numpy(), rel=1e-4, abs=1e-6)

    # Dropout goes on in both processes as if they had not died.
    for name in ("metrics.jsonl", LAST):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(ValueError, match="processes was 2 and is 1"):
        run(folder=tmp_path / "whole", resume=True)


def test_ctrl_c_stops_both_after_the_same_step(torchrun, tmp_path):
    process = torchrun(ENDLESS)
    metrics = tmp_path / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 1000):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    done = len(lines_of(tmp_path))
    assert done >= 3
    assert load_file(tmp_path / LAST)["optimizer.0.step"] == done


def test_a_world_that_torchrun_did_not_make_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ValueError, match="start several processes with torchrun, or unset it"):
        run()
