"""Train a model with any mechanism on a task, by the loop that the studies use."""

import argparse
import importlib
import math
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from anyformer.cli import about
from anyformer.cli._arguments import require_device, require_folder
from anyformer.cli._terminal import show, show_json

HERE = Path(__file__).parent


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of every task; what belongs to one is in _train_TASK.py, with `arguments(parser)` and `build(args)`."""
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True, title="tasks")
    for path in sorted(HERE.glob("_train_*.py")):
        name = path.stem.removeprefix("_train_")
        said = about(HERE.parent / "tasks" / f"{name}.py")
        task = tasks.add_parser(name, help=said, description=said)
        module = importlib.import_module(f"anyformer.cli.{path.stem}")
        module.arguments(task)
        task.set_defaults(build=module.build)
        options(task)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--steps", type=int, default=3000, help="default 3000")
    add("--batch-size", type=int, default=8, help="items of a step, over all processes (default 8)")
    add("--learning-rate", type=float, default=1e-3, help="of Adam (default 0.001)")
    add("--warmup", type=int, default=0, metavar="STEPS", help="in which the learning rate rises (default 0)")
    add("--clip", type=float, metavar="NORM", help="of the whole gradient at most (default: as it is)")
    add("--accumulate", type=int, default=1, metavar="PASSES", help="that share a batch (default 1)")
    add("--bfloat16", action="store_true", help="compute in bfloat16 where it is safe")
    add("--device", default="cpu", help="cpu (default) or cuda")
    add("--seed", type=int, default=0, help="of weights, data and dropout (default 0)")
    add("--folder", type=Path, metavar="DIR", help="keep metrics.jsonl and checkpoints there")
    add("--resume", action="store_true", help="go on with the run in --folder")
    add("--checkpoint-every", type=int, metavar="STEPS", help="default: twenty times a run")
    add("--evaluate-every", type=int, metavar="STEPS", help="default: at the end")
    add("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def run(args: argparse.Namespace) -> int:
    """0: done; 1: the loss is not finite; 130: interrupted."""
    if args.folder is None and (args.resume or args.checkpoint_every is not None):
        raise ValueError("--resume and --checkpoint-every need a --folder")
    require_folder(args.folder)
    require_device(args.device)
    import torch

    from anyformer.training.loop import METRICS, Diverged, train

    if args.folder is not None and not args.resume and (args.folder / METRICS).exists():
        raise ValueError(f"{args.folder} holds a run already: go on with it by --resume, or take another --folder")
    often = args.checkpoint_every
    if args.folder is not None and often is None:
        often = math.ceil(args.steps / 20)
    torch.manual_seed(args.seed)
    model, task = args.build(args)
    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun started
    try:
        lines = train(
            model,
            task,
            optimizer=partial(torch.optim.Adam, lr=args.learning_rate),
            steps=args.steps,
            warmup=args.warmup,
            clip=args.clip,
            accumulate=args.accumulate,
            bfloat16=args.bfloat16,
            device=args.device,
            seed=args.seed,
            evaluate_every=args.evaluate_every,
            checkpoint_every=often,
            folder=args.folder,
            resume=args.resume,
            quiet=args.json and not sys.stderr.isatty(),
        )
    except Diverged as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if first:
            print("interrupted" + (": --resume goes on" if args.folder else ""), file=sys.stderr)
        return 130
    if first:
        answer(args, {"task": task.what, "parameters": sum(p.numel() for p in model.parameters()), **lines[-1]})
    return 0


def answer(args: argparse.Namespace, found: dict[str, Any]) -> None:
    if args.json:
        show_json(found)
        return
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column(f"{args.task}, after {found['step']} steps")
    drawn.add_column("", justify="right")
    drawn.add_row("loss of the last step", f"{found['loss']:.4g}")
    for name, value in found["evaluation"].items():
        drawn.add_row(f"{name.replace('_', ' ')}, evaluated", f"{value:.4g}")
    show(drawn)
