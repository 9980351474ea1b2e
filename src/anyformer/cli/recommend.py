"""Which mechanism to take for a length on this machine, from measurements; "keep softmax" is an answer."""

import argparse
import sys
from pathlib import Path
from typing import Any

from anyformer.card import specs
from anyformer.cli._arguments import seconds, size
from anyformer.cli._terminal import DASH, can_draw, show, show_json
from anyformer.cli.crossover import LONGEST, RECORD
from anyformer.records import machine, read, recording, same_machine
from anyformer.reports.advice import able, in_mib, ranked, sentence, within

AGAINST = "softmax"
MODES = ("forward", "train")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--length", type=int, required=True, help="tokens")
    add("--causal", action="store_true", help="each token sees only earlier ones")
    add("--decode", action="store_true", help="token by token, after a context of that length (causal)")
    add("--mode", choices=MODES, default="forward", help="forward (default) or train")
    add("--memory", metavar="SIZE", help="at most so much at once for one layer's attention: 2GiB, 500MB")
    add("--exact-only", action="store_true", help="only what computes softmax attention exactly")
    add("--heads", type=int, default=4)
    add("--head-dim", type=int, default=64)
    add("--budget", default="30s", metavar="TIME", help="for measuring what no record tells (default 30s)")
    add("--record", type=Path, default=RECORD, metavar="F", help=f"read and append records there (default {RECORD})")
    add("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.length <= LONGEST:
        raise ValueError(f"--length is between 1 and {LONGEST}, not {args.length}")
    budget, limit = seconds("--budget", args.budget), size("--memory", args.memory) if args.memory else None
    if args.decode and args.mode == "train":
        raise ValueError("--decode runs forward only: leave --mode train out")
    mode, causal = ("decode", True) if args.decode else (args.mode, args.causal)
    refused = able(candidates(), causal=causal, decode=args.decode, exact=args.exact_only)
    names = [name for name, why in refused.items() if not why]
    wanted: dict[str, Any] = {"length": args.length, "causal": causal, "mode": mode, "against": AGAINST}

    records = known(args)
    rows = ranked(records, names, **wanted)
    unknown = [r["mechanism"] for r in rows if is_unknown(r, limit)]
    interrupted = False
    if unknown:
        try:
            measure(args, unknown, mode, causal, limit is not None, budget)
        except KeyboardInterrupt:
            interrupted = True
        records = known(args)
        rows = ranked(records, names, **wanted)
    rows, too_large = within(rows, limit)
    out = {name: why for name, why in {**refused, **too_large}.items() if why}
    if args.json:
        show_json({"advice": sentence(rows, AGAINST), **wanted, "ranked": rows, "left_out": out})
    else:
        show(*page(rows, out, mode, args.length))
    return 130 if interrupted else 0


def is_unknown(row: dict[str, Any], limit: int | None) -> bool:
    return (not row["gain"] and row["mechanism"] != AGAINST) or (limit is not None and row["bytes"] is None)


def candidates() -> list[str]:
    """Every mechanism and variant, but images' grids, which no length alone describes."""
    from anyformer.card import find

    return [name for name in specs() if "grid" not in find(name)[0].card.of(find(name)[1]).tiny]


def known(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What was measured on this machine with these heads, oldest first."""
    here = machine()
    return [
        record
        for record in (read(args.record) if args.record.exists() else [])
        if record.get("kind") == "crossover"
        and same_machine(record["machine"], here)
        and (record["what"]["batch"], record["what"]["dtype"], record["what"]["set"]) == (1, "float32", {})
        and (record["what"]["heads"], record["what"]["head_dim"]) == (args.heads, args.head_dim)
    ]


def measure(args: argparse.Namespace, names: list[str], mode: str, causal: bool, memory: bool, budget: float) -> None:
    """A quick run at this length alone."""
    print(f"no record tells about {', '.join(names)}: measuring for {budget:.0f} s at most", file=sys.stderr)
    modes = [mode, "memory"] if memory and mode != "decode" else [mode]
    what = {
        "names": [name for name in names if name != AGAINST] or [next(n for n in candidates() if n != AGAINST)],
        "against": AGAINST,
        "lengths": [args.length],
        "modes": modes,
        "levels": ["op, else layer"],
        "orders": [causal],
        "batch": 1,
        "heads": args.heads,
        "head_dim": args.head_dim,
        "dtype": "float32",
        "device": "cpu",
        "threads": machine()["threads"],
        "set": {},
        "compile": False,
    }
    with recording(args.record, "crossover", {**what, "budget": budget}, seed=args.seed) as record:
        from anyformer.cli._referee import referee

        referee(what, budget, args.seed, record, quiet=args.json)


def page(rows: list[dict[str, Any]], out: dict[str, str], mode: str, length: int) -> list[Any]:
    from rich.table import Table

    dash = DASH if can_draw(DASH) else "-"
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "mechanism", f"gain in {mode}", "memory", "what it costs you"):
        drawn.add_column(heading, no_wrap=heading != "what it costs you")
    for place, row in enumerate(rows, 1):
        found = row["gain"]
        times = f"{found['median']:.2f} [{found['low']:.2f}, {found['high']:.2f}]" if found else "not measured"
        level = " (layer)" if row["level"] == "layer" else ""
        drawn.add_row(
            str(place),
            row["mechanism"] + level,
            "1" if row["mechanism"] == AGAINST else times,
            in_mib(row["bytes"]) if row["bytes"] is not None else dash,
            row["price"],
        )
    left = [f"{name}: {why}" for name, why in out.items()]
    return [f"At {length} tokens: {sentence(rows, AGAINST)}", "", drawn, *([""] if left else []), *left]
