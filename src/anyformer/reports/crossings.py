"""The crossover table of the README: what the newest two records of the default command say."""

from collections.abc import Sequence
from typing import Any

from anyformer.records import same_machine
from anyformer.reports.bench import origin
from anyformer.reports.markdown import plain, table

Row = dict[str, Any]
NONE = "No finished run is recorded yet, so there are no numbers here. `make crossover` makes one."


def newest(records: Sequence[Row]) -> tuple[Row | None, Row | None]:
    """The newest finished run, and the one of the same request on the same machine before it."""
    done = [record for record in records if record["kind"] == "crossover" and record["status"] == "done"]
    if not done:
        return None, None
    last = done[-1]
    alike = [r for r in done[:-1] if r["what"] == last["what"] and same_machine(r["machine"], last["machine"])]
    return last, alike[-1] if alike else None


def summary(record: Row | None, before: Row | None, source: str = "records/crossover.jsonl") -> str:
    if record is None:
        return NONE
    what, rows = record["what"], series(record)
    columns = list(dict.fromkeys((row["mode"], row["causal"]) for row in rows.values()))
    lines = [
        [
            mechanism + ("" if level == "op" else f" ({level})"),
            *(words(rows.get((mechanism, level, *column))) for column in columns),
        ]
        for mechanism, level in dict.fromkeys((name, level) for name, level, *_ in rows)
    ]
    headings = ["mechanism", *(f"{mode}, {'causal' if causal else 'full'}" for mode, causal in columns)]
    parts = [
        f"The length from which each stays faster than {what['against']} (torch's fused attention), with its 95 % "
        f"interval; measured up to {max(what['lengths'])} tokens, batch {what['batch']}, {what['heads']} heads of "
        f"{what['head_dim']}, {what['dtype']}.",
        table(headings, lines),
    ]
    if before is not None:
        parts.append(agreement(before, record))
    return "\n\n".join([*parts, origin(record, source, source)])


def series(record: Row) -> dict[tuple[str, str, str, bool], Row]:
    return {
        (row["mechanism"], row["level"], row["mode"], row["causal"]): row
        for row in record["results"]
        if "crossover" in row and row["against"] == record["what"]["against"]
    }


def words(row: Row | None) -> str:
    if row is None:
        return "\N{EN DASH}"
    found = row["crossover"]
    if found["kind"] == "measured":
        return f"{found['length']:.0f} ({found['low']:.0f} to {found['high']:.0f})"
    if found["kind"] == "from the first length":
        return f"from {found['length']:.0f}, the first measured"
    return f"not up to {found['up_to']}" if found["kind"] == "none" else "too noisy to tell"


def agreement(one: Row, other: Row) -> str:
    """Whether two runs say the same within their intervals, where both say something."""
    pairs = [
        (row["crossover"], series(other)[key]["crossover"], key)
        for key, row in series(one).items()
        if key in series(other)
    ]
    decided = [(a, b, key) for a, b, key in pairs if "inconclusive" not in (a["kind"], b["kind"])]
    apart = [
        plain(
            f"{name}, {mode}, {'causal' if causal else 'full'}: {words({'crossover': a})} and {words({'crossover': b})}"
        )
        for a, b, (name, _, mode, causal) in decided
        if not alike(a, b)
    ]
    said = (
        f"The run before this one, of {one['started']}, agrees with it within the intervals in "
        f"{len(decided) - len(apart)} of the {len(decided)} cells that both decide"
    )
    undecided = len(pairs) - len(decided)
    left = f" {undecided} more {'is' if undecided == 1 else 'are'} too noisy in one of them." if undecided else ""
    return said + (f"; apart are {'; '.join(apart)}" if apart else "") + "." + left


def alike(one: Row, other: Row) -> bool:
    if one["kind"] != other["kind"]:
        ends = {found["kind"]: found for found in (one, other)}
        return ends.keys() == {"none", "measured"} and ends["measured"]["high"] > ends["none"]["up_to"]
    return one["kind"] != "measured" or (one["low"] <= other["high"] and other["low"] <= one["high"])
