"""Which mechanism to take, from what was measured on this machine."""

from collections.abc import Sequence
from math import exp, log
from typing import Any

from anyformer.card import find

Row = dict[str, Any]

NEAR = 2.0  # two measured lengths at most so far apart say what lies between them


def able(names: Sequence[str], *, causal: bool, decode: bool, exact: bool) -> dict[str, str]:
    """Each mechanism and why it cannot do the job, or nothing."""
    found = {}
    for name in names:
        entry, variant = find(name)
        card = entry.card.of(variant)
        why = ""
        if causal and card.causal == "no":
            why = "it cannot be causal"
        elif not causal and card.causal == "only":
            why = "it is only causal"
        elif decode and card.stream == "none":
            why = "it does not stream"
        elif exact and entry.idea != "exact":
            why = "it is not exact"
        found[name] = why
    return found


def gain(row: Row, length: int) -> Row | None:
    """The ratio at a length: measured there, or between two neighbours, with the wider of their intervals."""
    measured = {
        n: r for n, r, status in zip(row["lengths"], row["ratios"], row["status"], strict=True) if status == "measured"
    }
    if length in measured:
        return {**measured[length], "measured_at": [length]}
    below, above = (
        max((n for n in measured if n < length), default=None),
        min((n for n in measured if n > length), default=None),
    )
    if below is None or above is None or above > NEAR * below:
        return None
    part = log(length / below) / log(above / below)
    between = exp((1 - part) * log(measured[below]["median"]) + part * log(measured[above]["median"]))
    ends = measured[below], measured[above]
    return {
        "median": between,
        "low": min(end["low"] for end in ends),
        "high": max(end["high"] for end in ends),
        "measured_at": [below, above],
    }


def at(row: Row, who: str, length: int) -> float | None:
    """Seconds or bytes at the length, or at the next longer one that was measured."""
    longer = [n for n in row["lengths"] if n >= length]
    return float(row["values"][who][row["lengths"].index(min(longer))]["median"]) if longer else None


def ranked(
    records: Sequence[Row], names: Sequence[str], *, length: int, causal: bool, mode: str, against: str
) -> list[Row]:
    """Who is measured, the greatest gain first; what lies ahead of the baseline for certain stands above it."""
    found: list[Row] = []
    for name in names:
        if name == against:
            continue
        measured = newest(records, name, length=length, causal=causal, mode=mode, against=against)
        memory = newest(records, name, length=length, causal=causal, mode=f"{mode} memory", against=against)
        found.append(
            {
                "mechanism": name,
                "gain": measured[0] if measured else None,
                "level": measured[1]["level"] if measured else None,
                "bytes": at(memory[1], "mechanism", length) if memory else None,
                "price": price(name),
            }
        )
    held = [
        at(row, "against", length)
        for record in records
        for row in record["results"]
        if (row.get("against"), row.get("mode"), row.get("causal")) == (against, f"{mode} memory", causal)
    ]
    keep: Row = {"mechanism": against, "gain": None, "level": None, "price": price(against)}
    keep["bytes"] = next((size for size in reversed(held) if size is not None), None)
    known = sorted((row for row in found if row["gain"]), key=lambda row: -row["gain"]["median"])
    ahead = [row for row in known if row["gain"]["low"] > 1]
    return [*ahead, keep, *(row for row in known if row not in ahead), *(row for row in found if not row["gain"])]


def newest(
    records: Sequence[Row], name: str, *, length: int, causal: bool, mode: str, against: str
) -> tuple[Row, Row] | None:
    """The gain and the row of the newest record that tells it."""
    for record in reversed(records):
        for row in record["results"]:
            if "crossover" not in row or (row["mechanism"], row["against"]) != (name, against):
                continue
            if row["mode"] == mode and row["causal"] is causal and (told := gain(row, length)):
                return told, row
    return None


def price(name: str) -> str:
    entry, variant = find(name)
    return entry.card.of(variant).price


def within(rows: Sequence[Row], limit: int | None) -> tuple[list[Row], dict[str, str]]:
    """Those that fit into the memory, and why the others do not."""
    if limit is None:
        return list(rows), {}
    fits = [row for row in rows if row["bytes"] is not None and row["bytes"] <= limit]
    return fits, {
        row["mechanism"]: "its memory was not measured" if row["bytes"] is None else f"it needs {in_mib(row['bytes'])}"
        for row in rows
        if row not in fits
    }


def in_mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"


def sentence(rows: Sequence[Row], against: str) -> str:
    """The advice itself."""
    if not rows:
        return "nothing that was measured fits: raise --memory, or --budget to measure more"
    best = rows[0]
    if best["mechanism"] == against:
        return f"keep {against}"
    found = best["gain"]
    if not found:
        return f"take {best['mechanism']}, which fits; how fast it is was not measured"
    times = f"{found['median']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"
    return f"take {best['mechanism']}: {times} as fast as {against}. {best['price']}"
