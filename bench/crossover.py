"""From which length on does each mechanism pay on this machine? A first comparison with softmax attention.

python bench/crossover.py [--names NAME ...] [--lengths N ...] [--seconds 90] [--record FILE] [--json]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.card import find
from anyformer.card import mechanisms as cards
from anyformer.catalog import build, core, mechanism
from anyformer.cli import Parser
from anyformer.cli._terminal import reader_may_leave, show, show_json
from anyformer.laws.subject import height
from anyformer.measure.time import SHORTEST, ratio, rounds, sample
from anyformer.records import recording

sys.path.insert(0, str(Path(__file__).parent))

from contests import Entrant
from mechanisms import MODES, runner, tell

BASELINE = "softmax"  # torch's fused attention: the best exact one
HEADS, HEAD_DIM = 4, 64
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
LEAST = 0.5  # seconds that a comparison may take, however small its share
ROUNDS = 5  # at least, so that an interval says something
CHECKED = 256  # tokens at most on which the fast form must equal the formula before anything is timed
SHORT_OF_TIME = "no time left"

Row = dict[str, Any]


class Field(NamedTuple):
    """Those who are timed together: the same inputs, the same work for a model."""

    level: str  # "core": q, k and v in; "layer": with its projections
    causal: bool
    mode: str
    specs: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{order(self.causal)}{' layers' if self.level == 'layer' else ''}, {self.mode}"


def main(argv: Sequence[str] | None = None) -> int:
    """0: done; 1: a mechanism disagrees with its formula; 2: the request made no sense; 130: interrupted."""
    interrupted = False
    try:
        args = arguments(argv)
        what = {
            "names": args.names,
            "lengths": args.lengths,
            "seconds": args.seconds,
            "heads": HEADS,
            "head_dim": HEAD_DIM,
            "threads": torch.get_num_threads(),
            "dtype": "float32",
        }
        try:
            with recording(args.record, "crossover", what, seed=args.seed) as record:
                torch.manual_seed(args.seed)
                run(args, record)
        except KeyboardInterrupt:
            interrupted = True
            tell("interrupted: what is measured so far follows")
        found = verdicts(record["results"])
        with reader_may_leave():
            if args.json:
                show_json({"rows": record["results"], "verdicts": found})
            else:
                show(*report(record["results"], found))
            sys.stdout.flush()
    except (ValueError, TypeError, OSError) as error:
        print("crossover: error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    if interrupted:
        return 130
    return 1 if any("failed" in row for row in record["results"]) else 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="crossover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=[], metavar="NAME", help="name or name:variant; default: all")
    lengths = ", ".join(map(str, LENGTHS))
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="N", help=f"default: {lengths}")
    parser.add_argument("--seconds", type=float, default=90.0, help="for everything together (default 90)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="append a record to this file (default: none)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    if not args.seconds > 0:
        raise ValueError(f"--seconds must be above 0, not {args.seconds:g}")
    if min(args.lengths) < 1:
        raise ValueError(f"--lengths must be at least 1, not {min(args.lengths)}")
    args.lengths = sorted(set(args.lengths))
    for name in args.names:
        find(name)
    if not others(args.names):
        raise ValueError(f"there is nothing to compare with {BASELINE}: name another mechanism")
    if args.record is not None:  # better refused now than when all is measured
        args.record.parent.mkdir(parents=True, exist_ok=True)
        args.record.open("a").close()
    return args


def others(names: Sequence[str]) -> list[str]:
    return [name for name in names or cards() if name != BASELINE]


# Who runs


def fields(names: Sequence[str]) -> list[Field]:
    """Every mechanism in each order that its card claims, the cheap modes first."""
    found = []
    for mode in MODES:
        for causal in (False, True):
            for level, slot in (("core", "attention"), ("layer", "mixer")):
                specs = [
                    spec
                    for spec in others(names)
                    if facts(spec).slot == slot and facts(spec).causal in ("option", "only" if causal else "no")
                ]
                if specs:
                    found.append(Field(level, causal, mode, tuple(specs)))
    return found


def facts(spec: str) -> Any:
    entry, variant = find(spec)
    return entry.card.of(variant)


def made(spec: str, level: str, causal: bool, length: int) -> nn.Module:
    """The module with its own defaults, and with room for the length where it needs to know it."""
    tiny, known = facts(spec).tiny, signature(mechanism(spec)).parameters
    given = {"dim", "heads", "head_dim", "causal"} | set(find(spec)[0].card.variants.get(find(spec)[1] or "", {}))
    options = {n: tiny[n] for n, p in known.items() if p.default is p.empty and n in tiny and n not in given}
    if "max_length" in tiny:
        options["max_length"] = length
    if "grid" in tiny:
        options["grid"] = (height(length), length // height(length))
    if level == "core":
        return core(spec, heads=HEADS, head_dim=HEAD_DIM, causal=causal, **options)
    if "heads" in known:
        options["heads"] = HEADS
    return build(spec, dim=HEADS * HEAD_DIM, causal=causal, **options)


def inputs(level: str, length: int) -> tuple[Tensor, ...]:
    """q, k and v as projections give them, heads beside one another in memory; or the tokens of a layer."""
    drawn = torch.Generator().manual_seed(length)
    if level == "layer":
        return (torch.randn(1, length, HEADS * HEAD_DIM, generator=drawn),)
    return tuple(torch.randn(1, length, HEADS, HEAD_DIM, generator=drawn).transpose(1, 2) for _ in range(3))


def entrant(spec: str, field: Field, length: int) -> Callable[[], object]:
    module: Any = made(spec, field.level, field.causal, length).train(field.mode == "training")
    run = module.attend if field.level == "core" else module
    return runner(Entrant(run, module=module), inputs(field.level, length), field.mode)


@torch.no_grad()
def disagreement(spec: str, field: Field, length: int) -> str:
    """How the fast form differs from the formula in float64, or nothing."""
    try:
        module: Any = made(spec, field.level, field.causal, length).double().eval()
        given = [t.double() for t in inputs(field.level, length)]
        fast, literal = (module.attend if field.level == "core" else module)(*given), module.formula(*given)
    except ValueError:  # a length that it refuses: timing will say so
        return ""
    off = (fast - literal).abs().max().item()
    agree = off <= 1e-9 * max(1.0, literal.abs().max().item())
    return "" if agree else f"the fast form is off its formula by {off:.2g}"


# What is measured


def run(args: argparse.Namespace, record: Row) -> None:
    """Short lengths of all fields first; each field and length has its share of the seconds that are left."""
    began = perf_counter()
    todo = fields(args.names)
    out = sound(todo, min(CHECKED, args.lengths[0]), record)
    cells = [(length, field) for length in args.lengths for field in todo]
    weights = [length * len(field.specs) * (1 if field.mode == "forward" else 3) for length, field in cells]
    for n, (length, field) in enumerate(cells):
        left = max(0.0, args.seconds - (perf_counter() - began))
        share = left * weights[n] / sum(weights[n:])
        if left:
            tell(f"{field.title}, {length} tokens" + (f", about {share:.0f} s" if share >= 1 else ""))
            runs, notes = affordable(field, length, share, out)
        else:
            runs, notes = {}, dict.fromkeys(field.specs, SHORT_OF_TIME)
        about = {"level": field.level, "causal": field.causal, "mode": field.mode, "length": length}
        record["results"] += [{"mechanism": spec, **about, "left_out": note} for spec, note in notes.items()]
        if len(runs) < 2:
            continue
        taken = rounds(runs, seconds=share, at_least=ROUNDS)
        record["repeats"][f"{field.title}, {length}"] = taken
        record["results"] += [
            {"mechanism": spec, **about, "ratio": ratio(taken[BASELINE], taken[spec])._asdict()}
            for spec in runs
            if spec != BASELINE
        ]
    if any(row.get("left_out") == SHORT_OF_TIME for row in record["results"]):
        tell(f"some were left out at the longer lengths: more than --seconds {args.seconds:g} would measure them")


def sound(todo: Sequence[Field], length: int, record: Row) -> dict[tuple[Field, str], str]:
    """No number for what is not correct: who is out before anything is timed, and why."""
    tell("comparing each mechanism with its formula")
    out: dict[tuple[Field, str], str] = {}
    wrong: dict[tuple[str, bool], str] = {}
    for field in todo:
        for spec in field.specs:
            who = spec, field.causal
            if who not in wrong:
                wrong[who] = disagreement(spec, field, length)
                if wrong[who]:
                    record["results"].append({"mechanism": spec, "causal": field.causal, "failed": wrong[who]})
                    tell(f"{spec}, {order(field.causal)}: not timed: {wrong[who]}")
            if wrong[who]:
                out[field, spec] = wrong[who]
    return out


def affordable(
    field: Field, length: int, seconds: float, out: dict[tuple[Field, str], str]
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """The baseline and as many of the others as fit into the time, the quick ones first; and why not the rest.

    Who is too slow at one length is left out at the longer ones too, so that no verdict has gaps.
    """
    timed: dict[str, tuple[float, Callable[[], object]]] = {}
    notes = {spec: SHORT_OF_TIME for spec in field.specs if out.get((field, spec)) == SHORT_OF_TIME}
    for spec in (BASELINE, *field.specs):
        if (field, spec) in out:
            continue
        try:
            call = entrant(spec, field, length)
            timed[spec] = max(SHORTEST, min(sample(call, 1), sample(call, 1))), call  # the first call of all is slower
        except (ValueError, RuntimeError) as refusal:  # RuntimeError: not enough memory
            notes[spec] = " ".join(str(refusal).split())
            tell(f"{spec}, {field.title}, {length} tokens: left out: {notes[spec]}")
    runs, needed, least = {}, 0.0, max(LEAST, seconds)
    for spec in sorted(timed, key=lambda spec: (spec != BASELINE, timed[spec][0])):
        needed += (ROUNDS + 2) * timed[spec][0]
        if BASELINE in timed and (spec == BASELINE or needed <= least):
            runs[spec] = timed[spec][1]
        else:
            notes[spec] = out[field, spec] = SHORT_OF_TIME
    return runs, notes


# What it says


def verdicts(rows: Sequence[Row]) -> list[Row]:
    """For each mechanism, order and mode the first length from which it stays ahead."""
    groups: dict[tuple[str, str, bool, str], list[Row]] = {}
    for row in rows:
        if "ratio" in row:
            groups.setdefault((row["mechanism"], row["level"], row["causal"], row["mode"]), []).append(row)
    found = []
    for (name, level, causal, mode), measured in groups.items():
        measured.sort(key=lambda row: row["length"])
        first = None
        for row in reversed(measured):
            if row["ratio"]["low"] <= 1:
                break
            first = row["length"]
        up_to = measured[-1]["length"]
        found.append(
            {"mechanism": name, "level": level, "causal": causal, "mode": mode, "from": first, "measured_up_to": up_to}
        )
    return found


def report(rows: Sequence[Row], found: Sequence[Row]) -> list[Any]:
    from rich.table import Table

    lengths = sorted({row["length"] for row in rows if "ratio" in row})
    cells = {key(row, row["length"]): row["ratio"] for row in rows if "ratio" in row}
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("mechanism", "order", "mode", *map(str, lengths), "faster"):
        drawn.add_column(heading, justify="right" if heading.isdigit() else "left", no_wrap=heading == "mechanism")
    for verdict in sorted(found, key=lambda v: (v["mechanism"], v["causal"], v["mode"])):
        drawn.add_row(
            verdict["mechanism"] + (" (layer)" if verdict["level"] == "layer" else ""),
            order(verdict["causal"]),
            verdict["mode"],
            *(in_words(cells.get(key(verdict, length))) for length in lengths),
            faster(verdict, lengths[-1]),
        )
    failed = [f"{r['mechanism']}, {order(r['causal'])}: not timed: {r['failed']}" for r in rows if "failed" in r]
    if not found:
        return ["nothing was measured", *failed]
    return [
        drawn,
        "",
        f"Time of {BASELINE} (torch's fused attention) over the mechanism's, batch 1, {HEADS} heads of {HEAD_DIM}, "
        f"float32, torch threads: {torch.get_num_threads()}. Above 1 the mechanism is faster.",
        "Beneath each ratio stands its 95 % bootstrap interval; faster counts when the whole interval is above 1, "
        "at that length and all longer ones measured.",
        *failed,
    ]


def faster(verdict: Row, longest: int) -> str:
    first, up_to = verdict["from"], verdict["measured_up_to"]
    if first is None:
        return f"none up to {up_to}"
    return f"from {first}" + (f", measured up to {up_to}" if up_to < longest else "")


def key(row: Row, length: int) -> tuple[Any, ...]:
    return row["mechanism"], row["level"], row["causal"], row["mode"], length


def in_words(ratio: Row | None) -> str:
    return f"{ratio['median']:.2f}\n{ratio['low']:.2f}-{ratio['high']:.2f}" if ratio else ""


def order(causal: bool) -> str:
    return "causal" if causal else "full"


if __name__ == "__main__":
    sys.exit(main())
