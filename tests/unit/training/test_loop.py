"""What the loop computes, against the same written out by hand, and how a run ends."""

import itertools
import json
import math
import os
import signal
import threading
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from unit.training.tiny import Points, run, small

from anyformer.training.loop import Diverged, interruptible, learning


def by_hand(steps, *, dropout=0.0):
    """Plain Adam on the mean loss over all that counts."""
    model, task, losses = small(dropout), Points(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        total, count, _ = task.loss(model, task.batch(step))
        (total / count).backward()
        optimizer.step()
        losses.append(total.item() / count)
    return losses, model


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


# The steps


def test_the_loop_is_gradient_descent_on_the_mean_loss():
    losses, expected = by_hand(40)
    model = small(0.0)
    lines = run(model)
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-5)
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_it_learns():
    lines = run(steps=300, evaluate_every=None)
    assert lines[0]["loss"] > 0.5
    assert lines[-1]["evaluation"]["accuracy"] > 0.9


@pytest.mark.parametrize("accumulate", [2, 3, 8])
def test_passes_that_share_a_batch_weigh_by_what_they_count(accumulate):
    whole = run(small(0.0))
    shared = run(small(0.0), accumulate=accumulate)
    for name in ("loss", "accuracy", "gradient_norm", "count"):
        assert [line[name] for line in shared] == pytest.approx([line[name] for line in whole], rel=1e-4)


def test_more_passes_than_items_are_refused():
    with pytest.raises(ValueError, match="a batch of 8 cannot be shared by 1 processes with accumulate=9"):
        run(accumulate=9)


def test_a_line_says_what_its_step_did():
    line = run(steps=5)[2]
    assert line["step"] == 3
    task = Points()
    assert line["count"] == int((task.batch(2)["target"] != -100).sum())
    assert line["loss"] == line["loss_sum"] / line["count"]
    assert set(line) == {"step", "loss", "loss_sum", "count", "accuracy", "learning_rate", "gradient_norm"}


def test_lines_and_evaluations_come_when_asked_and_at_the_end():
    lines = run(steps=10, log_every=4, evaluate_every=6)
    assert [line["step"] for line in lines] == [4, 6, 8, 10]
    assert [line["step"] for line in lines if "evaluation" in line] == [6, 10]


def test_evaluation_leaves_training_as_it_is():
    often, seldom = small(), small()

    class Drawing(Points):
        def evaluate(self, model):
            assert not model.training
            assert not torch.is_grad_enabled()
            torch.rand(7)
            return super().evaluate(model)

    run(often, Drawing(), evaluate_every=1)
    run(seldom, evaluate_every=None)
    assert same(often, seldom)
    assert often.training


def test_the_seed_decides_dropout_and_nothing_else_does():
    first, again, other = small(), small(), small()
    run(first, seed=1)
    torch.rand(3)
    run(again, seed=1)
    run(other, seed=2)
    assert same(first, again)
    assert not same(first, other)


def test_clipping_shortens_the_gradient_and_logs_it_whole():
    seen = []

    class Watching(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(torch.nn.utils.get_total_norm([p.grad for p in self.param_groups[0]["params"]]).item())
            return super().step(closure)

    lines = run(optimizer=partial(Watching, lr=0.1), clip=0.05, steps=6)
    whole = [line["gradient_norm"] for line in lines]
    assert min(whole) > 0.05
    assert seen == pytest.approx([0.05] * 6, rel=1e-4)
    free = run(optimizer=partial(Watching, lr=0.1), clip=1e6, steps=6)
    assert seen[6:] == pytest.approx([line["gradient_norm"] for line in free], rel=1e-4)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32():
    found = []

    class Watching(nn.Sequential):
        def forward(self, x):
            y = super().forward(x)
            found.append(y.dtype)
            return y

    model = Watching(*small())
    run(model, bfloat16=True, steps=3)
    assert set(found) == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    found.clear()
    run(model, steps=3)
    assert set(found) == {torch.float32}


# The learning rate


def test_the_learning_rate_rises_and_falls():
    rates = [learning(step, 100, 10, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)  # half of the way down
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert 0.1 < rates[-1] < 0.101
    assert [learning(step, 100, 0, 1.0) for step in range(100)] == [1.0] * 100


def test_every_group_keeps_its_own_rate():
    used = []

    class Watching(torch.optim.SGD):
        def step(self, closure=None):
            used.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    def two(parameters):
        first, *rest = parameters
        return Watching([{"params": [first], "lr": 0.5}, {"params": rest}], lr=0.1)

    lines = run(optimizer=two, steps=4, warmup=2)
    assert used == [[0.25, 0.05], [0.5, 0.1], [0.5, 0.1], [0.5, 0.1]]
    assert [line["learning_rate"] for line in lines] == [0.25, 0.5, 0.5, 0.5]


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"warmup": 40}, "warmup=40 must be from 0 to below steps=40"),
        ({"final": 1.5}, "final=1.5 from 0 to 1"),
        ({"clip": 0.0}, "clip=0.0 must be above 0"),
        ({"resume": True}, "give folder="),
        ({"checkpoint_every": 5}, "give folder="),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


# Ends


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_batch(tmp_path):
    model = small()
    with pytest.raises(Diverged, match=r"step 13 is not finite .*its batch is in .*diverged-13\.safetensors"):
        run(model, Points(spoiled=12), folder=tmp_path, checkpoint_every=5)
    kept = load_file(tmp_path / "diverged-13.safetensors")
    assert kept["x"][3, 0, 0] == math.inf
    assert {name: torch.equal(t, Points(spoiled=12).batch(12)[name]) for name, t in kept.items()} == {
        "x": True,
        "target": True,
    }
    assert all(p.isfinite().all() for p in model.parameters())  # the step was not taken
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 12


def test_a_gradient_that_is_not_finite_stops_the_run_too():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4, 2))

        def forward(self, x):
            return x @ self.w.abs().sqrt()  # finite at 0, where its slope is not

    with pytest.raises(Diverged, match=r"step 1 is not finite .* give folder= to keep its batch"):
        run(Root())


def test_a_score_that_is_not_finite_stops_the_run_too():
    class Scored(Points):
        def evaluate(self, model):
            return {"loss": math.nan}

    with pytest.raises(Diverged, match=r"scores \{'loss': nan\}"):
        run(task=Scored())


class Interrupted(Points):
    """Ctrl-C in the middle of a step."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def batch(self, step):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)
        return super().batch(step)


def test_ctrl_c_finishes_the_step_and_saves_it(tmp_path):
    whole = small()
    expected = run(whole, folder=tmp_path / "whole")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(task=Interrupted(16), folder=tmp_path / "cut")
    assert signal.getsignal(signal.SIGINT) is before
    assert len((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()) == 17
    model = small()
    assert run(model, folder=tmp_path / "cut", resume=True) == expected
    assert same(model, whole)


def test_a_second_ctrl_c_does_not_wait():
    with interruptible() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.wait(5)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(5)


def test_a_thread_trains_without_touching_signals():
    found = []
    thread = threading.Thread(target=lambda: found.extend(run(steps=3)))
    thread.start()
    thread.join(60)
    assert len(found) == 3


def test_the_lines_returned_are_those_of_the_file(tmp_path):
    lines = run(folder=tmp_path)
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == lines
    assert len(lines) == 40
