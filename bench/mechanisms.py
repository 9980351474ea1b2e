"""Time and memory of every mechanism against its peers, in interleaved rounds; writes records/bench.jsonl.

python bench/mechanisms.py [NAME ...] [--seconds 3] [--up-to TOKENS] [--json]
"""

import argparse
import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from contests import Contest, Entrant

from anyformer.laws import catalogued, judge
from anyformer.measure.floor import Limits, limits
from anyformer.measure.memory import peak_bytes
from anyformer.measure.time import interval, ratio, rounds
from anyformer.records import recording

ROOT = Path(__file__).parent.parent
PEERS = ("linear-attention-transformer", "linformer", "local-attention", "performer-pytorch", "lambda-networks", "timm")
MODES = ("forward", "training")


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    torch.manual_seed(args.seed)
    if args.threads:
        torch.set_num_threads(args.threads)
    what = {
        "names": args.names,
        "seconds": args.seconds,
        "up_to": args.up_to,
        "threads": torch.get_num_threads(),
        "dtype": "float32",
    }
    try:
        with recording(args.record, "bench", what, seed=args.seed, packages=PEERS) as record:
            run(args, record)
    except KeyboardInterrupt:
        tell(f"interrupted: {len(record['results'])} rows are kept")
        return 130
    if args.json:
        print(json.dumps(record["results"], indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table(record["results"]))
    return 1 if any("failed" in row for row in record["results"]) else 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; none means all")
    parser.add_argument("--seconds", type=float, default=3.0, help="for the rounds of each row (default 3)")
    parser.add_argument("--up-to", type=int, default=1 << 20, metavar="TOKENS", help="leave larger sizes out")
    parser.add_argument("--threads", type=int, help="of torch (default: as torch has it)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=ROOT / "records" / "bench.jsonl", help="where to append")
    parser.add_argument("--no-record", dest="record", action="store_const", const=None, help="append nowhere")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    args = parser.parse_args(argv)
    for name in args.names:
        if name not in names():
            parser.error(f"there is no contest for {name!r}; there are {', '.join(names())}")
    return args


def names() -> list[str]:
    return sorted(path.stem for path in (Path(__file__).parent / "contests").glob("[!_]*.py"))


def run(args: argparse.Namespace, record: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")  # of the peers
    tell("measuring the machine's own limits")
    machine = limits()
    record["results"].append({"limits": machine._asdict()})
    judged: dict[str, str] = {}
    for contest in found(args.names or names()):
        if tokens(contest) > args.up_to:
            continue
        title = f"{contest.mechanism}, {contest.setting}, {contest.size}"
        if contest.mechanism not in judged:
            tell(f"{contest.mechanism}: judging by the laws")
            judged[contest.mechanism] = "; ".join(
                f"{o.law}: {o.note}" for o in judge(catalogued(contest.mechanism)) if o.status == "fail"
            )
        about = {"mechanism": contest.mechanism, "setting": contest.setting, "size": contest.size}
        if judged[contest.mechanism]:  # no number for what is not correct
            record["results"].append({**about, "failed": judged[contest.mechanism]})
            tell(f"{title}: not timed, a law fails: {judged[contest.mechanism]}")
            continue
        for mode in MODES:
            row, taken = measure(contest, mode, args.seconds, machine)
            record["results"].append({**about, "mode": mode, **row})
            record["repeats"][f"{title}, {mode}"] = taken
            tell(f"{title}, {mode}: {in_words(row)}")


def found(wanted: Sequence[str]) -> Iterator[Contest]:
    for name in wanted:
        yield from importlib.import_module(f"contests.{name}").contests()


def tokens(contest: Contest) -> int:
    x = contest.inputs[0]
    return x.shape[-2]


def measure(
    contest: Contest, mode: str, seconds: float, machine: Limits
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """A row: time against each peer, over the floor, and peak memory; and the raw repeats."""
    runs = {name: runner(entrant, contest.inputs, mode) for name, entrant in contest.entrants.items()}
    taken = rounds(runs, seconds=seconds)
    ours, *peers = runs
    work = 1 if mode == "forward" else 3  # each product has two more in the backward pass; each tensor its gradient
    moved = contest.moved * (1 if mode == "forward" else 2)
    floor = machine.floor(contest.operations * work, moved)
    row = {
        "seconds": {name: interval(values)._asdict() for name, values in taken.items()},
        "peers": {name: ratio(taken[name], taken[ours])._asdict() for name in peers},
        "differs": {name: contest.entrants[name].differs for name in peers if contest.entrants[name].differs},
        "over_floor": interval([value / floor for value in taken[ours]])._asdict(),
        "floor_seconds": floor,
        "peak_bytes": {name: peak_bytes(call) for name, call in runs.items()},
    }
    return row, taken


def runner(entrant: Entrant, inputs: tuple[Tensor, ...], mode: str) -> Callable[[], object]:
    if mode == "forward":

        def forward() -> Tensor:
            with torch.no_grad():
                return entrant.run(*inputs)

        return forward
    inputs = tuple(t.detach().requires_grad_() for t in inputs)
    wanted = [*inputs, *(entrant.module.parameters() if entrant.module is not None else [])]
    with torch.no_grad():
        y = entrant.run(*inputs)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))

    def training() -> object:
        return torch.autograd.grad(entrant.run(*inputs), wanted, upstream, allow_unused=True)

    return training


def in_words(row: dict[str, Any]) -> str:
    beside = ", ".join(f"{r['median']:.2f}x {name}" for name, r in row["peers"].items())
    return f"{beside}; {row['over_floor']['median']:.2f}x the floor"


def table(rows: list[dict[str, Any]]) -> Table:
    drawn = Table(title="ours against each peer: above 1 is faster, 95 % interval", box=None, pad_edge=False)
    for heading in ("mechanism", "size", "mode", "peer", "speed", "over the floor", "peak memory, theirs / ours"):
        drawn.add_column(heading)
    for row in rows:
        for peer, r in row.get("peers", {}).items():
            memory = row["peak_bytes"][peer] / max(1, row["peak_bytes"][next(iter(row["peak_bytes"]))])
            drawn.add_row(
                f"{row['mechanism']}, {row['setting']}",
                " ".join(str(n) for n in row["size"].values()),
                row["mode"],
                peer + (" *" if peer in row["differs"] else ""),
                f"{r['median']:.2f} ({r['low']:.2f} to {r['high']:.2f})",
                f"{row['over_floor']['median']:.2f}",
                f"{memory:.2f}",
            )
    drawn.caption = "* computes another function"
    return drawn


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
