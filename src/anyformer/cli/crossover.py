"""From which length on does each mechanism pay on this machine? Measured against the best exact attention."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyformer.card import find, mechanisms
from anyformer.cli._arguments import listed, option, require_device, require_writable, seconds
from anyformer.cli._terminal import reader_may_leave, show, show_json
from anyformer.records import read, recording, write_whole

Row = dict[str, Any]

MODES = ("forward", "train", "decode", "memory")
LEVELS = ("op", "layer", "model")
DTYPES = ("float32", "float64", "bfloat16", "float16")
LENGTHS = "128:4096"
LONGEST = 1 << 20
RECORD, PAGE = Path("crossover.jsonl"), Path("crossover.html")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME[:variant]", help="default: every mechanism")
    add("--against", default="softmax", metavar="NAME", help="the baseline (default: softmax, torch's fused attention)")
    add(
        "--lengths",
        default=LENGTHS,
        metavar="A:B",
        help=f"doubling from A to B, or a list: 100,300 (default {LENGTHS})",
    )
    add("--mode", default="forward,train", metavar="M,M", help=f"of {', '.join(MODES)} (default forward,train)")
    add(
        "--level",
        metavar="L,L",
        help="op (q, k, v in), layer (with projections), model (two blocks); default: op where there is one",
    )
    add("--causal", action=argparse.BooleanOptionalAction, help="only in causal order, or only not (default: both)")
    add("--batch", type=int, default=1)
    add("--heads", type=int, default=4)
    add("--head-dim", type=int, default=64)
    add("--dtype", default="float32", help=f"of {', '.join(DTYPES)} (default float32)")
    add("--device", default="cpu", help="cpu (default) or cuda")
    add("--threads", type=int, help="of torch (default: as torch has it)")
    add("--set", action="append", default=[], metavar="NAME.OPTION=VALUE", help="an option, such as local.window=64")
    add("--compile", action="store_true", help="measure compiled too whoever claims torch.compile")
    add("--budget", default="2m", metavar="TIME", help="for everything together: 90s, 2m, 1h (default 2m)")
    add("--seed", type=int, default=0)
    add("--json", nargs="?", const="-", metavar="F", help="print JSON, or write it to F")
    add("--html", type=Path, metavar="F", help=f"write the page to F (default {PAGE}; none with --json alone)")
    add("--record", type=Path, default=RECORD, metavar="F", help=f"append the record to F (default {RECORD})")
    add("--resume", action="store_true", help="go on with the newest interrupted run of the same request in --record")


def run(args: argparse.Namespace) -> int:
    """0: done; 1: a law fails; 130: interrupted."""
    what, budget = request(args), seconds("--budget", args.budget)
    page = place_of_page(args)
    for path in (args.record, page, None if args.json in (None, "-") else Path(args.json)):
        require_writable(path)
    earlier = unfinished(args.record, what) if args.resume else None
    interrupted = False
    try:
        with recording(args.record, "crossover", {**what, "budget": budget}, seed=args.seed) as record:
            from anyformer.cli._referee import referee

            referee(what, budget, args.seed, record, earlier, quiet=args.json == "-")
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted: what is measured is kept; --resume goes on with it", file=sys.stderr)
    answer(record, args, page)
    if interrupted:
        return 130
    return 1 if any("failed" in row for row in record["results"]) else 0


def answer(record: Row, args: argparse.Namespace, page: Path | None) -> None:
    """The table or JSON, and the page."""
    said = {
        **{fact: record[fact] for fact in ("machine", "versions", "commit", "dirty", "what", "status")},
        "rows": [row for row in record["results"] if "crossover" in row],
        "not_measured": [row for row in record["results"] if "failed" in row or "skipped" in row],
    }
    with reader_may_leave():
        if args.json == "-":
            show_json(said)
        else:
            show(*report(record))
        sys.stdout.flush()
    if args.json not in (None, "-"):
        write_whole(Path(args.json), json.dumps(said, indent=1) + "\n")
    if page is not None and said["rows"]:
        from anyformer.reports.page import render

        write_whole(page, render([record]))
        print(f"the page: {page}", file=sys.stderr)


# The request


def request(args: argparse.Namespace) -> Row:
    """Everything that decides what is measured, checked."""
    for name in (*args.names, args.against):
        find(name)
    if args.json is not None and args.json.partition(":")[0] in mechanisms():
        raise ValueError(f"--json {args.json} would write a file of that name: name mechanisms before the options")
    for name in ("batch", "heads", "head_dim", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}")
    modes = listed("--mode", args.mode, MODES)
    if modes == ["decode"] and args.causal is False:
        raise ValueError("decoding is causal: leave --no-causal out")
    require_device(args.device)
    import torch

    from anyformer.cli._referee import defaults

    return {
        "names": list(dict.fromkeys(args.names)) or defaults(args.against),
        "against": args.against,
        "lengths": lengths(args.lengths),
        "modes": modes,
        "levels": listed("--level", args.level, LEVELS) if args.level else ["op, else layer"],
        "orders": [False, True] if args.causal is None else [args.causal],
        **{name: getattr(args, name) for name in ("batch", "heads", "head_dim")},
        "dtype": listed("--dtype", args.dtype, DTYPES)[0],
        "device": args.device,
        "threads": args.threads or torch.get_num_threads(),
        "set": options(args.set),
        "compile": args.compile,
    }


def lengths(text: str) -> list[int]:
    from anyformer.measure.referee import grid

    words = text.split(":" if ":" in text else ",")
    if not all(word.strip().isdigit() for word in words) or (":" in text and len(words) != 2):
        raise ValueError(f"--lengths takes A:B, or a list such as 100,300, not {text!r}")
    found = [int(word) for word in words]
    if min(found) < 1:
        raise ValueError(f"--lengths must be at least 1, not {min(found)}")
    if max(found) > LONGEST:
        raise ValueError(f"--lengths go up to {LONGEST}, not {max(found)}")
    if ":" not in text:
        return sorted(set(found))
    if found[0] > found[1]:
        raise ValueError(f"--lengths {text} is reversed: write {found[1]}:{found[0]}")
    return grid(*found)


def options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """name.option=value, ... -> name -> option -> value."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, dot, rest = text.partition(".")
        if not dot or "=" not in rest:
            raise ValueError(f"--set takes NAME.OPTION=VALUE, such as local.window=64, not {text!r}")
        find(name)
        reserved = ("causal", "heads", "head_dim", "dim")
        key, value = option(rest, reserved, "the same for all")
        found.setdefault(name, {})[key] = value
    return found


def place_of_page(args: argparse.Namespace) -> Path | None:
    page = args.html or (None if args.json else PAGE)
    from importlib.util import find_spec

    if page is None or (find_spec("matplotlib") and find_spec("jinja2")):
        return page
    if args.html:
        raise ValueError("--html needs matplotlib and jinja2: pip install 'anyformer[report]'")
    print("no page without matplotlib and jinja2: pip install 'anyformer[report]'", file=sys.stderr)
    return None


def unfinished(path: Path, what: Row) -> Row:
    """The newest interrupted run of the same request."""
    for record in reversed(read(path) if path.exists() else []):
        if record.get("kind") == "crossover" and {**record["what"], "budget": 0} == {**what, "budget": 0}:
            if record["status"] == "done":
                break
            return record
    raise ValueError(f"{path} holds no interrupted run of this request: leave --resume out")


# The table


def report(record: Row) -> list[Any]:
    from rich.table import Table

    what, rows = record["what"], [row for row in record["results"] if "crossover" in row]
    left = [f"{r['mechanism']}: no number: {r['failed']}" for r in record["results"] if "failed" in r]
    left += [f"{r['mechanism']}: not measured: {r['skipped']}" for r in record["results"] if "skipped" in r]
    if not rows:
        return ["nothing was measured", *left]
    grid = sorted({n for row in rows for n in row["lengths"] if n in what["lengths"]})
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("mechanism", "mode", "order", *map(str, grid), "ahead of it"):
        drawn.add_column(heading, justify="right" if heading.isdigit() else "left", no_wrap=heading == "mechanism")
    for row in sorted(rows, key=lambda r: (r["mechanism"], r["level"], r["against"], r["mode"], r["causal"])):
        cells = dict(zip(row["lengths"], zip(row["ratios"], row["status"], strict=True), strict=True))
        drawn.add_row(
            named(row, what["against"]),
            row["mode"],
            "causal" if row["causal"] else "full",
            *(cell(*cells[n]) if n in cells else "" for n in grid),
            ahead(row["crossover"]),
        )
    skipped = {why["why"] for row in rows for why in row["left_out"]}
    if "no time left" in skipped:
        left.append("empty cells: no time left; more --budget measures them")
    return [
        drawn,
        "",
        f"Time, or memory, of {what['against']} over the mechanism's: above 1 the mechanism is ahead. Batch "
        f"{what['batch']}, {what['heads']} heads of {what['head_dim']}, {what['dtype']}, torch threads: "
        f"{record['machine']['threads']}. Beneath each ratio its 95 % interval.",
        *left,
    ]


def named(row: Row, against: str) -> str:
    level = "" if row["level"] == "op" else f" ({row['level']})"
    return row["mechanism"] + level + (f"\nagainst {row['against']}" if row["against"] != against else "")


def cell(ratio: Row, status: str) -> str:
    if status == "inconclusive":
        return f"?\n{ratio['low']:.2g}-{ratio['high']:.2g}"
    if ratio["low"] == ratio["high"]:
        return f"{ratio['median']:.2f}"
    return f"{ratio['median']:.2f}\n{ratio['low']:.2f}-{ratio['high']:.2f}"


def ahead(found: Row) -> str:
    """The crossover in words."""
    if found["kind"] == "measured":
        return f"from {found['length']:.0f}\n[{found['low']:.0f}, {found['high']:.0f}]"
    if found["kind"] == "none":
        return f"never up to {found['up_to']}"
    return {"from the first length": "from the first length on", "inconclusive": "too noisy to tell"}[found["kind"]]
