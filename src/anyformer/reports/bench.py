"""The speed tables: what a record of the bench says, and nothing else."""

from collections.abc import Sequence
from math import exp, log
from typing import Any

from anyformer.reports.markdown import number, plain, table

Row = dict[str, Any]
NONE = "No finished run of the bench is recorded yet, so there are no numbers here. `make bench` writes one."
READING = (
    "Speed is the peer's time over anyformer's, in the same interleaved rounds: above 1 anyformer is faster. "
    "In brackets stands the 95 % bootstrap interval of the median."
)
FLOOR = (
    "Over the floor is anyformer's time over the least that this machine could take: "
    "the fewest operations at the speed of a matrix product, or inputs and outputs once at the speed of a copy."
)
MEMORY = "Memory is the peer's peak over anyformer's."


def newest(records: Sequence[Row]) -> Row | None:
    """The newest finished run of the bench; one of all contests counts before one of a few."""
    done = [record for record in records if record["kind"] == "bench" and record["status"] == "done"]
    return next((record for record in reversed(done) if not record["what"].get("names")), done[-1] if done else None)


def summary(record: Row | None, page: str = "docs/bench.md", source: str = "records/bench.jsonl") -> str:
    """For each contest the fastest peer that does the same work, and the geometric means."""
    if record is None:
        return NONE
    lines: dict[tuple[str, str], dict[str, Row]] = {}
    for row in timed(record):
        lines.setdefault((contestant(row), size(row)), {})[row["mode"]] = row
    modes = list(dict.fromkeys(row["mode"] for row in timed(record)))
    headings = ["mechanism", "size", *modes, "over the floor", "memory"]
    cells = [
        [
            *who,
            *(against_fastest(by_mode[mode]) if mode in by_mode else "" for mode in modes),
            " / ".join(number(row["over_floor"]["median"]) for row in by_mode.values()),
            " / ".join(memory(row, fastest(row)) for row in by_mode.values()),
        ]
        for who, by_mode in lines.items()
    ]
    parts = [
        f"Each row stands for the fastest peer that does the same work; \\* marks one that does not. "
        f"{READING} {FLOOR} {MEMORY} The last two columns are for {' / '.join(modes)}. "
        f"Every peer is in [{page}]({page}).",
        table(headings, cells),
        "\n".join(f"- {line}" for line in [*means(record), *footnotes(record)]),
        origin(record, source, source),
    ]
    return "\n\n".join(part for part in parts if part)


def page(record: Row | None, source: str = "records/bench.jsonl") -> str:
    """Every peer of every row."""
    head = f"# Bench\n\nWritten by `make docs` from `{source}`; change nothing here.\n\n"
    if record is None:
        return head + NONE + "\n"
    headings = ("mechanism", "size", "mode", "peer", "speed", "over the floor", "memory", "seconds")
    cells = [
        (
            contestant(row),
            size(row),
            row["mode"],
            plain(peer) + mark(row, peer),
            ratio(row["peers"][peer]) if peer else "",
            ratio(row["over_floor"]),
            memory(row, peer),
            f"{row['seconds'][ours(row)]['median']:.3g}",
        )
        for row in timed(record)
        for peer in row["peers"] or [""]
    ]
    parts = [
        f"{READING} {FLOOR} {MEMORY} Seconds are anyformer's, a call.",
        table(headings, cells),
        "\n".join(f"- {line}" for line in [*means(record), *footnotes(record)]),
        origin(record, source, f"../{source}"),
    ]
    return head + "\n\n".join(part for part in parts if part) + "\n"


# A row


def timed(record: Row) -> list[Row]:
    return [row for row in record["results"] if "peers" in row]


def contestant(row: Row) -> str:
    return plain(f"{row['mechanism']}, {row['setting']}")


def size(row: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in row["size"].items())


def ours(row: Row) -> str:
    return next(iter(row["seconds"]))


def same_work(row: Row) -> list[str]:
    return [peer for peer in row["peers"] if not row["differs"].get(peer)]


def fastest(row: Row) -> str:
    """The fastest peer that does the same work; without one, the fastest of the others."""
    return min(same_work(row) or row["peers"], key=lambda peer: row["peers"][peer]["median"], default="")


def against_fastest(row: Row) -> str:
    peer = fastest(row)
    return f"{ratio(row['peers'][peer])} {plain(peer)}{mark(row, peer)}" if peer else "no peer"


def mark(row: Row, peer: str) -> str:
    return " \\*" if row["differs"].get(peer) else ""


def ratio(interval: Row) -> str:
    return f"{number(interval['median'])} ({number(interval['low'])} to {number(interval['high'])})"


def memory(row: Row, peer: str) -> str:
    return number(row["peak_bytes"][peer] / max(1, row["peak_bytes"][ours(row)])) if peer else "\N{EN DASH}"


# All rows


def means(record: Row) -> list[str]:
    """Over the rows that have a peer doing the same work."""
    found = []
    for mode in dict.fromkeys(row["mode"] for row in timed(record)):
        rows = [row for row in timed(record) if row["mode"] == mode and same_work(row)]
        if not rows:
            continue
        ratios = {peer_of(row): row["peers"][fastest(row)] for row in rows}
        mean = exp(sum(log(r["median"]) for r in ratios.values()) / len(ratios))
        faster = sum(r["low"] > 1 for r in ratios.values())
        slower = sum(r["high"] < 1 for r in ratios.values())
        lowest = min(ratios, key=lambda who: ratios[who]["median"])
        found.append(
            f"{mode}: geometric mean {number(mean)} over {len(ratios)} rows; faster in {faster}, slower in {slower}, "
            f"undecided in {len(ratios) - faster - slower}; lowest {ratio(ratios[lowest])}, {lowest}"
        )
    return found


def peer_of(row: Row) -> str:
    return f"{contestant(row)}, {size(row)}, against {plain(fastest(row))}"


def footnotes(record: Row) -> list[str]:
    """Who computes something else, and what was not timed."""
    differs: dict[tuple[str, str, str], None] = {}
    for row in timed(record):
        differs.update({(row["mechanism"], peer, what): None for peer, what in row["differs"].items() if what})
    notes = [
        f"\\* beside {plain(name)}, {plain(peer)} computes something else: {plain(what)}; it is not in the means"
        for name, peer, what in differs
    ]
    failed = {(contestant(row), size(row), row["failed"]): None for row in record["results"] if "failed" in row}
    notes += [f"{who}, {much}: not timed, because a law fails: {plain(why)}" for who, much, why in failed]
    return notes


def origin(record: Row, source: str, link: str) -> str:
    """The machine, the versions, the commit and the record."""
    machine, what = record["machine"], record["what"]
    facts = [
        machine["processor"],
        f"{machine['cores']} cores",
        f"{machine['memory_gib']} GiB",
        f"{machine['system']} {machine['architecture']}",
        *(f"{name} {version}" for name, version in record["versions"].items() if name in ("python", "torch")),
        *([f"torch threads {what['threads']}"] if "threads" in what else []),
        *([what["dtype"]] if "dtype" in what else []),
    ]
    limits = next((row["limits"] for row in record["results"] if "limits" in row), None)
    if limits:
        facts.append(f"{limits['operations_per_second'] / 1e9:.0f} GFLOP/s of matrix product")
        facts.append(f"{limits['bytes_per_second'] / 1e9:.0f} GB/s of copying")
    commit = f"commit {record['commit'][:12]}" if record["commit"] else "no commit"
    changed = " with uncommitted changes" if record["dirty"] else ""
    return (
        f"Machine: {plain(', '.join(map(str, facts)))}.\n\n"
        f"Source: the record of {record['started']} in [{source}]({link}), {commit}{changed}."
    )


# Models


def models(record: Row | None, source: str = "records/bench_models.jsonl") -> str:
    """Training of a whole sequence-to-sequence model against torch's."""
    if record is None:
        return "## Models\n\n" + NONE.replace("make bench", "python bench/models.py") + "\n"
    what, names = record["what"], list(record["results"][0]["speed"])
    lines = [
        [str(row["length"]), str(row["batch"]), *(ratio(row["speed"][name]) for name in names)]
        for row in record["results"]
    ]
    parts = [
        "## Models",
        f"Training steps of a sequence-to-sequence model, dim {what['dim']}, {what['heads']} heads, {what['layers']} + "
        f"{what['layers']} layers: time of torch.nn.Transformer over anyformer's, in the same interleaved rounds.",
        table(["tokens", "batch", *names], lines),
        origin(record, source, f"../{source}"),
    ]
    return "\n\n".join(parts) + "\n"
