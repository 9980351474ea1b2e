"""One loop that trains any model on any task.

    lines = train(model, CopySeq2Seq(length=64, batch_size=8), steps=3000, optimizer=partial(torch.optim.Adam, lr=1e-3))

The batch of a step is a function of the step's number, and so is the learning rate: where a run is, is one number.
The gradient is that of the mean over all that a batch counts, however processes and passes share the batch.
"""

import json
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from anyformer.contract import require_positive
from anyformer.tasks import Batch, Task
from anyformer.training import checkpoint
from anyformer.training.distribution import Group, group
from anyformer.training.progress import Shown

METRICS = "metrics.jsonl"


class Diverged(ValueError):
    """A loss, a gradient or a score is not finite."""


def train(
    model: nn.Module,
    task: Task,
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    steps: int,
    warmup: int = 0,
    final: float = 1.0,
    clip: float | None = None,
    accumulate: int = 1,
    bfloat16: bool = False,
    device: str = "cpu",
    seed: int = 0,
    log_every: int = 1,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    folder: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Train in place; return a dictionary for each logged step, which `folder` keeps as lines of metrics.jsonl.

    `optimizer` makes one of the parameters. Its learning rates rise along a line for `warmup` steps, then fall along
    half a cosine to `final` of themselves; 1 keeps them constant. `clip` is the largest norm of the whole gradient.
    `accumulate` passes share a batch. `seed` is for dropout and the like; weights and data have their own.
    The last step is always logged, evaluated and, with a folder, saved. Ctrl-C ends the run after the step it is in
    and saves that; `resume` goes on from the newest checkpoint, or begins if there is none.
    """
    require_positive(steps=steps, accumulate=accumulate, log_every=log_every)
    for name, every in (("evaluate_every", evaluate_every), ("checkpoint_every", checkpoint_every)):
        require_positive(**{name: 1 if every is None else every})
    if not 0 <= warmup < steps or not 0 <= final <= 1:
        raise ValueError(f"warmup={warmup} must be from 0 to below steps={steps}, and final={final} from 0 to 1")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip} must be above 0")
    if folder is None and (resume or checkpoint_every is not None):
        raise ValueError("checkpoints need a place: give folder=")
    here = group(device)
    with interruptible() as asked:
        model.to(here.device).train()
        adapt = optimizer(model.parameters())
        rates = [float(options["lr"]) for options in adapt.param_groups]
        arguments = {
            "model": checkpoint.outline(model),
            "task": task.what,
            "optimizer": described(adapt),
            "steps": steps,
            "warmup": warmup,
            "final": final,
            "clip": clip,
            "accumulate": accumulate,
            "bfloat16": bfloat16,
            "device": here.device.type,
            "processes": here.size,
            "seed": seed,
            "log_every": log_every,
            "evaluate_every": evaluate_every,
        }
        arguments = json.loads(json.dumps(arguments))  # as a checkpoint will hold them
        step, stopped = 0, False
        lines: list[dict[str, Any]] = []
        checkpoint.seed_all(seed, here.rank)
        if folder is not None:
            found = pick_up(folder, arguments, resume)
            here.wait()  # whoever comes late must not see what the others begin to write
            if found is not None:
                step = found.step
                checkpoint.put_back(found.tensors, model, adapt)
                checkpoint.set_random_state(found.random[here.rank], here.device)
            lines = cut(folder / METRICS, 0 if found is None else found.metrics_bytes)
        parallel = here.parallel(model)
        cast = torch.autocast(here.device.type, dtype=torch.bfloat16, enabled=bfloat16)

        with Shown(done=step, steps=steps, unit=task.unit, quiet=quiet or here.rank > 0) as shown:
            while step < steps and not stopped:
                batch = task.batch(step)
                share = learning(step, steps, warmup, final)
                for options, rate in zip(adapt.param_groups, rates, strict=True):
                    options["lr"] = rate * share
                adapt.zero_grad()
                totals = here.total(backward(parallel, task, batch, accumulate, here, cast) | {"stop": asked.is_set()})
                loss, count, stopped = totals.pop("loss"), totals.pop("count"), totals.pop("stop") > 0
                norm = rescale(model, here.size / count, clip)
                if not math.isfinite(loss) or not math.isfinite(norm):
                    raise diverged(f"loss {loss / count}, gradient norm {norm}", batch, step + 1, here, folder)
                adapt.step()
                step += 1
                shown.step(step, loss / count, count)

                line: dict[str, Any] = {"step": step, "loss": loss / count, "loss_sum": loss, "count": int(count)}
                line |= {name: value / count for name, value in totals.items()}
                line |= {"learning_rate": rates[0] * share, "gradient_norm": norm}
                if step == steps or (evaluate_every is not None and step % evaluate_every == 0):
                    scores = evaluated(model, task, here, cast)
                    if not all(map(math.isfinite, scores.values())):
                        raise diverged(f"scores {scores}", batch, step, here, folder)
                    line["evaluation"] = scores
                    shown.say(f"step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in scores.items()))
                if step % log_every == 0 or "evaluation" in line:
                    lines.append(line)
                    if folder is not None and here.rank == 0:
                        append(folder / METRICS, line)
                due = checkpoint_every is not None and step % checkpoint_every == 0
                if folder is not None and (due or stopped or step == steps):
                    save(folder, step, arguments, model, adapt, here)
            if stopped:
                shown.say(f"stopped after step {step}" + ("" if folder is None else "; resume=True goes on from here"))
        if stopped or asked.is_set():
            raise KeyboardInterrupt
    return lines


def described(optimizer: Optimizer) -> dict[str, Any]:
    """Its kind and options, as JSON."""
    groups = {
        f"group {number}": {name: value for name, value in options.items() if name != "params"}
        | {"parameters": len(options["params"])}
        for number, options in enumerate(optimizer.param_groups)
    }
    return {"kind": type(optimizer).__name__, **groups}


def learning(step: int, steps: int, warmup: int, final: float) -> float:
    """The share of its learning rate that step 0, 1, ... takes."""
    if step < warmup:
        return (step + 1) / warmup
    return final + (1 - final) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def backward(
    model: nn.Module, task: Task, batch: Batch, accumulate: int, here: Group, cast: AbstractContextManager[Any]
) -> dict[str, float]:
    """Gradients of the summed loss over this process's share of the batch; returns the sums."""
    parts, items = here.size * accumulate, min(len(t) for t in batch.values())
    if items < parts:
        raise ValueError(
            f"a batch of {items} cannot be shared by {here.size} processes with accumulate={accumulate}; make it larger"
        )
    sums: dict[str, float] = {}
    for turn in range(accumulate):
        number = here.rank * accumulate + turn
        part = {name: t.tensor_split(parts)[number].to(here.device) for name, t in batch.items()}
        early = turn < accumulate - 1
        with model.no_sync() if early and isinstance(model, DistributedDataParallel) else nullcontext():
            with cast:
                loss, count, others = task.loss(model, part)
            loss.backward()
        for name, value in {"loss": loss.item(), "count": count, **others}.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def rescale(model: nn.Module, by: float, clip: float | None) -> float:
    """Multiplies the gradient, then shortens it to `clip`; returns its norm before that."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = by * float(torch.nn.utils.get_total_norm(gradients))
    factor = by * min(1.0, clip / norm) if clip is not None and norm > 0 else by
    for gradient in gradients:
        gradient.mul_(factor)
    return norm


def evaluated(model: nn.Module, task: Task, here: Group, cast: AbstractContextManager[Any]) -> dict[str, float]:
    """Scores, by every process alike; training goes on as if there had been no evaluation."""
    before = checkpoint.random_state(here.device)
    model.eval()
    with torch.no_grad(), cast:
        scores = task.evaluate(model)
    model.train()
    checkpoint.set_random_state(before, here.device)
    return scores


def diverged(why: str, batch: Batch, step: int, here: Group, folder: Path | None) -> Diverged:
    """The error for a batch, which is saved."""
    if folder is None:
        return Diverged(
            f"step {step} is not finite ({why}); lower the learning rate, or give folder= to keep its batch"
        )
    path = folder / f"diverged-{step}.safetensors"
    if here.rank == 0:
        checkpoint.write(path, checkpoint.apart(batch), {"why": why})
    here.wait()
    return Diverged(f"step {step} is not finite ({why}); its batch is in {path}; lower the learning rate or set clip=")


def pick_up(folder: Path, arguments: dict[str, Any], resume: bool) -> checkpoint.Checkpoint | None:
    """The checkpoint to go on from; None to begin."""
    folder.mkdir(parents=True, exist_ok=True)
    names = (checkpoint.LAST, checkpoint.PREVIOUS, METRICS)
    if not resume and any((folder / name).exists() for name in names):
        raise ValueError(f"{folder} holds a run already: go on with it by resume=True, or take another folder")
    return checkpoint.load(folder, arguments)


def save(
    folder: Path, step: int, arguments: dict[str, Any], model: nn.Module, optimizer: Optimizer, here: Group
) -> None:
    """A checkpoint, written by one process with what it needs of the others."""
    random = here.everyones(checkpoint.random_state(here.device))
    if here.rank == 0:
        with checkpoint.writing(folder / METRICS):
            checkpoint.flush(folder / METRICS)
        size, tensors = (folder / METRICS).stat().st_size, checkpoint.tensors_of(model, optimizer)
        checkpoint.save(folder, checkpoint.Checkpoint(step, arguments, size, random, tensors))
    here.wait()


def append(path: Path, line: dict[str, Any]) -> None:
    with checkpoint.writing(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")


def cut(path: Path, size: int) -> list[dict[str, Any]]:
    """The lines within the first `size` bytes; those after a checkpoint will be written again."""
    path.touch()
    if path.stat().st_size < size:
        raise ValueError(f"{path} is shorter than when the checkpoint was written: restore it, or take another folder")
    os.truncate(path, size)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@contextmanager
def interruptible() -> Iterator[Event]:
    """The first Ctrl-C only sets the event, so that no step is left half done; a second one interrupts at once."""
    asked = Event()

    def ask(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        asked.set()

    ours = current_thread() is main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
