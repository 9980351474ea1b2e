"""The page of the referee: what crossover records say, as one file of HTML that needs no network."""

import json
import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from itertools import groupby
from math import log
from pathlib import Path
from statistics import median
from typing import Any

from anyformer.card import Entry, entries
from anyformer.reports import cards, figures
from anyformer.reports.figures import (
    LEVELS,
    SPACE,
    TIME,
    Interval,
    Row,
    Series,
    Style,
    Units,
    all_series,
    case_title,
    digits,
    listed,
    number,
    order,
    part,
    positive,
    printable,
    rounded,
    short,
    unit,
)

DASH, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
LARGEST_MATRIX = 64  # tokens
KNOWN = {"crossover", "failed", "skipped", "matrix", "limits", "floors", "high_water"}  # rows, by the key that tells
PASSES = {"forward": "the forward pass", "train": "training", "decode": "decoding"}

Cell = tuple[str, str | float]  # what it shows, and what it is sorted by; "" is missing and comes last
Table = dict[str, Any]


def render(records: Iterable[Row], found: Mapping[str, Entry] | None = None) -> str:
    """The page of the newest runs among the records; `found` are the mechanisms of its capability table."""
    found = entries() if found is None else found
    return filled(
        "page.html",
        runs=[view(run, f"run{n}", titles(found)) for n, run in enumerate(newest(records), 1)],
        capabilities=capabilities(found),
    )


def filled(template: str, **values: Any) -> str:
    """A page from its template, which extends base.html."""
    with figures.extra():
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader
    )
    environment.filters |= {"svg": Markup, "csp_hash": csp_hash, "marked": lambda words: Markup(marked(words))}
    return environment.get_template(template).render(values, light=figures.LIGHT, dark=figures.DARK)


def csp_hash(script: str) -> str:
    """What the page's policy must say for its own script to run, and no other."""
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"


def marked(words: str) -> str:
    """Escaped; [low, high] in a lighter face and on the line of its number, and the number of a paper as a link."""
    safe = re.sub(r" (\[-?[\d.,]+, -?[\d.,]+\])", r'&nbsp;<span class="ci">\1</span>', escape(words))
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r'<a href="https://arxiv.org/abs/\1" rel="noreferrer">\g<0></a>', safe)


def newest(records: Iterable[Row]) -> list[Row]:
    """For each machine and request the newest finished run; a cancelled one only where there is no other."""
    runs = [r for r in records if r.get("kind") == "crossover"]
    kept: dict[str, Row] = {}
    for run in sorted(runs, key=lambda r: (r.get("status") == "done", printable(r.get("started")))):
        if run.get("status") in ("done", "cancelled"):
            kept[fingerprint(run)] = run
    if not kept:
        errors = [f" (the last one failed: {printable(r['error'])})" for r in runs if "error" in r]
        raise ValueError(f"no finished run of the referee is recorded{''.join(errors[-1:])}: run `anyformer crossover`")
    return sorted(kept.values(), key=lambda r: printable(r.get("started")), reverse=True)


def fingerprint(run: Row) -> str:
    """What two runs have in common when the newer one replaces the older."""
    try:
        return json.dumps([run.get("machine"), run.get("what")], sort_keys=True)
    except RecursionError:
        raise ValueError("a record is nested without end: restore its file from git") from None


def titles(found: Mapping[str, Entry]) -> dict[str, str]:
    return {name: entry.card.title for name, entry in found.items()}


def summary(record: Row, found: Mapping[str, Entry] | None = None) -> Row:
    """The answers of a record as sentences, and the numbers behind them."""
    known = titles(entries() if found is None else found)
    every, unread = all_series(record)
    time = fair(record, every)
    return {
        "headline": headline(time, best(time), known)["text"],
        "warnings": warnings(record, unread),
        **{name: record.get(name) for name in ("status", "started", "commit", "dirty", "machine", "what")},
        "answers": [
            {
                "sentence": sentence(s, known),
                **{name: getattr(s, name) for name in ("mechanism", "against", "level", "mode", "memory", "causal")},
                **s.crossing._asdict(),
            }
            for s in every
        ],
    }


# One run


def view(record: Row, name: str, known: Mapping[str, str]) -> Row:
    """Everything that the template lays out, ready to be shown; `name` begins its ids, `known` has titles."""
    found, unread = all_series(record)
    against, of = figures.baseline(record, found), figures.styles(found)
    time = fair(record, found)
    return {
        "id": name,
        "place": figures.place(record),
        "warnings": warnings(record, unread),
        "headline": headline(time, best(time), known),
        "against": against,
        "answers": answers([s for s in found if not s.memory], against, best(time)),
        "memory": answers([s for s in found if s.memory], against, None),
        "swatches": {who: figures.swatch(style) for who, style in of.items()},
        "sections": sections(found, against, of, name),
        "scaling": scaling(found),
        "extrapolation": extrapolation(time),
        "matrices": matrices(record),
        "numbers": [numbers(list(case)) for _, case in groupby([s for s in found if s.points], lambda s: s.case)],
        "failed": [(printable(row.get("mechanism")), printable(row["failed"])) for row in rows(record, "failed")],
        "left_out": left_out(record, found),
        "facts": facts(record),
        "command": command(record),
    }


def fair(record: Row, found: Sequence[Series]) -> list[Series]:
    """Comparisons of time with the main baseline."""
    against = figures.baseline(record, found)
    return [s for s in found if not s.memory and s.against == against]


def rows(record: Row, key: str) -> list[Row]:
    return [row for row in listed(record, "results") if isinstance(row, dict) and key in row]


def warnings(record: Row, unread: Sequence[str]) -> list[str]:
    """What the reader should know first."""
    unknown = sum(not isinstance(row, dict) or not KNOWN & row.keys() for row in listed(record, "results"))
    found = []
    if record.get("status") == "cancelled":
        found.append("This run was cancelled. The page shows what was measured by then.")
    if unread:
        more = f"; and {len(unread) - 3} more" if len(unread) > 3 else ""
        found.append(f"Rows of the record that cannot be read: {'; '.join(unread[:3])}{more}.")
    if unknown:
        found.append(f"Rows of the record of a kind that this page does not know: {unknown}.")
    return found


# The answer


def titled(name: str, known: Mapping[str, str]) -> str:
    """linear attention; sliding-window attention (local)."""
    title = known.get(re.split("[:,]", name)[0], name)
    return title if name.replace("_", " ").lower() in title.lower() else f"{title} ({name})"


def overtakes(s: Series) -> bool:
    return bool(s.points) and s.crossing.kind in ("measured", "from the first length")


def start(s: Series) -> float:
    """The length from which on it is ahead."""
    return s.crossing.length or s.points[0].length


def end(s: Series) -> tuple[float, float]:
    """The longest length that is measured, and the ratio there."""
    return next(((p.length, p.ratio.median) for p in reversed(s.points) if p.ratio and p.sure), (0.0, 0.0))


def best(found: Sequence[Series]) -> Series | None:
    """What the page begins with: the first to overtake at the innermost level where anybody does."""
    firsts = (first_to_overtake(s for s in found if s.level == level) for level in LEVELS)
    return next(filter(None, firsts), None)


def first_to_overtake(found: Iterable[Series]) -> Series | None:
    """Of those that are ahead from the same length on, the one that is furthest ahead in the end."""
    return min(filter(overtakes, found), key=lambda s: (start(s), -end(s)[1]), default=None)


def verdict(s: Series) -> str:
    """What was found, to stand beside the mechanism's name."""
    at = s.crossing
    if not s.points:
        return f"not measured: {s.left_out[0][1]}"
    if at.kind == "measured":
        return f"at {bracketed(start(s), at.low, at.high, short)} tokens"
    if at.kind == "from the first length":
        return f"from the first length measured on ({short(start(s))})"
    return f"never up to {short(at.up_to)}" if at.kind == "none" else "inconclusive: the machine was too loaded"


def sentence(s: Series, known: Mapping[str, str]) -> str:
    """The same in full."""
    level = "" if s.level == "op" else f", {LEVELS[s.level]}"
    where = f"for {PASSES[s.mode]} ({order(s)}{level})"
    who = titled(s.mechanism, known)
    if not s.points or s.crossing.kind == "inconclusive":
        return f"{who} against {s.against} {where}: {verdict(s)}"
    if s.memory:
        never = "never " if s.crossing.kind == "none" else ""
        return f"{who} {never}needs less memory than {s.against} {verdict(s).removeprefix('never ')} {where}"
    if s.crossing.kind == "none":
        return f"{who} never overtakes {s.against} {verdict(s).removeprefix('never ')} tokens {where}"
    return f"{who} overtakes {s.against} {verdict(s)} {where}"


def headline(found: Sequence[Series], chosen: Series | None, known: Mapping[str, str]) -> dict[str, str]:
    """The first thing that one reads: the best case, or that softmax stays."""
    measured = [s for s in found if s.points]
    unsure = sum(s.crossing.kind == "inconclusive" for s in measured)
    if chosen is not None:
        length, ratio = end(chosen)
        later = [f"At {short(length)} tokens it is {digits(ratio)} times as fast."] if length > start(chosen) else []
        later += ["In brackets stands the 95 % interval."] if chosen.crossing.low and chosen.crossing.high else []
        return {"text": f"On this machine {sentence(chosen, known)}.", "detail": " ".join(later)}
    if not measured:
        return {"text": "This record holds no comparison of times.", "detail": ""}
    if unsure == len(measured):
        return {
            "text": "Inconclusive: the machine was too loaded.",
            "detail": "Measure again while it does nothing else.",
        }
    up_to = short(min(s.crossing.up_to for s in measured))
    keep = f"On this machine keep {measured[0].against}: nothing {'is seen to overtake' if unsure else 'overtakes'} it"
    return {
        "text": f"{keep} up to {up_to} tokens.",
        "detail": f"{unsure} of {len(measured)} comparisons are inconclusive." if unsure else "",
    }


def answers(found: Sequence[Series], against: str, chosen: Series | None) -> list[Row]:
    """For each level a card for each case."""
    return [
        {
            "level": LEVELS[level].capitalize(),
            "cards": [card(list(case), against, chosen) for _, case in groupby(group, lambda s: s.case)],
        }
        for level, group in groupby(found, lambda s: s.level)
    ]


def card(found: Sequence[Series], against: str, chosen: Series | None) -> Row:
    """One case: what to do, and how each mechanism does."""
    longest = max(end(s)[0] for s in found)
    return {
        "title": case_title(found[0]),
        "rule": rule([s for s in found if s.against == against], against),
        "best": chosen is not None and chosen.case == found[0].case,
        "end": f"{'ratio' if found[0].memory else 'speed'} at {short(longest)}" if longest else "",
        "groups": [
            (other, [answer(s, longest) for s in group])
            for other, group in groupby(sorted(found, key=lambda s: rank(s, against)), lambda s: s.against)
        ],
    }


def answer(s: Series, longest: float) -> Row:
    """One line of a card; where it ends before the longest length, it says so."""
    last, ratio = end(s)
    return {
        "name": s.mechanism,
        "verdict": verdict(s).removeprefix("at ").removesuffix(" tokens"),
        "ahead": overtakes(s),
        "end": f"{digits(ratio)}{TIMES}" if last else DASH,
        "at": f"at {short(last)}" if 0 < last < longest else "",
    }


def rank(s: Series, against: str) -> tuple[Any, ...]:
    """Within a card: who overtakes first comes first, the second baseline last."""
    return s.against != against, s.against, not overtakes(s), start(s) if overtakes(s) else not s.points, -end(s)[1]


def rule(found: Sequence[Series], against: str) -> str:
    """What to do, said plainly."""
    first, measured = first_to_overtake(found), [s for s in found if s.points]
    if not measured:
        return f"Nothing was measured against {against}."
    if first is not None and first.crossing.kind == "measured":
        return f"Keep {against} below {short(start(first))} tokens."
    if first is not None:
        return f"Take {first.mechanism}: it is ahead at every length measured, from {short(start(first))} tokens on."
    if any(s.crossing.kind == "inconclusive" for s in measured):
        return "Undecided: the machine was too loaded."
    return f"Keep {against} up to {short(min(s.crossing.up_to for s in measured))} tokens."


# Figures


def sections(found: Sequence[Series], against: str, of: Mapping[str, Style], name: str) -> list[Row]:
    """Those that have a figure."""
    passes = [s for s in found if s.mode != "decode"]
    decode = [s for s in found if s.mode == "decode"]
    drawn = [
        (
            "Speed",
            f"How many times as fast as {against} each mechanism is. Above 1 it is faster. A ring marks where it "
            "overtakes for good, a band the 95 % interval; hollow points are inconclusive.",
            panels([s for s in passes if not s.memory and s.against == against], figures.ratios, of, f"{name} speed"),
        ),
        (
            "Time",
            "The time of one call. Both scales are logarithmic: linear growth has slope 1, quadratic growth slope 2.",
            panels([s for s in passes if not s.memory], figures.costs, of, f"{name} time"),
        ),
        (
            "Decoding",
            "One more token after so many: its speed, its time, and the bytes carried from token to token. "
            "“Nothing cached” computes everything again for each token.",
            [
                *panels(
                    [s for s in decode if not s.memory and s.against == against], figures.ratios, of, f"{name} decode"
                ),
                *panels([s for s in decode if not s.memory], figures.costs, of, f"{name} token"),
                *panels([s for s in decode if s.memory], figures.costs, of, f"{name} state"),
            ],
        ),
        (
            "Memory",
            "The peak of one call.",
            panels([s for s in passes if s.memory], figures.costs, of, f"{name} peak"),
        ),
    ]
    return [
        {
            "id": f"{name}-{title.lower()}",
            "title": title,
            "about": about,
            "legend": [who for who in of if any(who in panel["names"] for panel in made)],
            "levels": [(level, list(group)) for level, group in groupby(made, lambda panel: panel["level"])],
        }
        for title, about, made in drawn
        if made
    ]


def panels(found: Sequence[Series], draw: Callable[..., str], of: Mapping[str, Style], salt: str) -> list[Row]:
    """A figure for each case, with words for those who do not see it."""
    made = []
    for n, (_, group) in enumerate(groupby(found, lambda s: s.case)):
        case = list(group)
        first, decoding = case[0], case[0].mode == "decode"
        if draw is figures.ratios:
            unit = f"times as fast as {first.against}"
        elif first.memory:
            unit = "bytes carried" if decoding else "bytes at the peak"
        else:
            unit = "time of a token" if decoding else "time of a call"
        said = ". ".join(f"{s.mechanism} against {s.against}: {verdict(s)}" for s in case)
        label = f"{case_title(first)}, {LEVELS[first.level]}: {unit}, against length. {said}."
        if svg := draw(case, of, f"{salt} {n}", label):
            names = {name for s in case for name in (s.mechanism, s.against)}
            about = {"level": LEVELS[first.level].capitalize(), "title": case_title(first), "unit": unit}
            made.append({**about, "svg": svg, "names": names})
    return made


def matrices(record: Row) -> list[Row]:
    """The attention matrix that each mechanism amounts to."""
    found = []
    for row in rows(record, "matrix"):
        said, name = part(row, "matrix"), printable(row.get("mechanism"))
        weights, title = square(said), "causal" if said.get("causal") is True else "full"
        svg = figures.matrix(weights, f"Attention matrix of {name}, {title}, {len(weights)} tokens") if weights else ""
        found.append({"name": name, "order": title, "svg": svg})
    return found


def square(said: Row) -> list[list[float]]:
    """The weights of a matrix, or nothing where they are none that can be drawn."""
    lines = [
        [w for w in map(number, line) if w is not None]
        for line in listed(said, "weights")[: LARGEST_MATRIX + 1]
        if isinstance(line, list)
    ]
    return lines if len(lines) <= LARGEST_MATRIX and all(len(line) == len(lines) for line in lines) else []


# Tables


def text(value: str) -> Cell:
    return value, value.lower()


def amounts(value: float | None, write: Callable[[float], str] = digits) -> Cell:
    return (DASH, "") if value is None else (write(value), value)


def bracketed(value: float, low: float | None, high: float | None, write: Callable[[float], str]) -> str:
    """310 [290, 340]; alone where the interval has no width or is not known."""
    return (
        write(value) if low is None or high is None or low == high else f"{write(value)} [{write(low)}, {write(high)}]"
    )


def ranged(value: Interval | None, units: Units = ((1, ""),)) -> Cell:
    if value is None:
        return DASH, ""
    scale, name = unit(value.median, units)
    median, low, high = (bound / scale for bound in value)
    return f"{bracketed(median, low, high, digits)} {name}".rstrip(), value.median


def table(caption: str, headings: Sequence[str], lines: Sequence[Sequence[Cell]]) -> Table:
    """A column with a number in any of its cells is sorted by numbers, and words come last there."""
    numeric = [any(not isinstance(line[n][1], str) for line in lines) for n in range(len(headings))]
    cells = [
        [
            (shown, "" if number and isinstance(key, str) else key)
            for (shown, key), number in zip(line, numeric, strict=True)
        ]
        for line in lines
    ]
    return {"caption": caption, "headings": list(zip(headings, numeric, strict=True)), "lines": cells}


def named(s: Series) -> tuple[Cell, Cell, Cell]:
    return text(s.mechanism), text(case_title(s)), text(LEVELS[s.level])


def numbers(case: Sequence[Series]) -> Table:
    """Every length of one case."""
    what, units = ("memory", SPACE) if case[0].memory else ("time", TIME)
    others = {s.against for s in case}
    other = f"{what} of {case[0].against if len(others) == 1 else 'the other'}"
    headings = ["mechanism", "against", "tokens", "ratio", what, other, "over the floor", "remark"]
    lines = [
        (
            text(s.mechanism),
            text(s.against),
            amounts(p.length, short),
            ranged(p.ratio),
            ranged(p.ours, units),
            ranged(p.theirs, units),
            ranged(p.over_floor),
            text("" if p.sure else "inconclusive"),
        )
        for s in case
        for p in s.points
    ]
    kept = [n for n, heading in enumerate(headings) if n < 6 or any(line[n][1] != "" for line in lines)]
    kept = [n for n in kept if headings[n] != "against" or len(others) > 1]
    return table(
        f"{case_title(case[0])}, {LEVELS[case[0].level]}",
        [headings[n] for n in kept],
        [[line[n] for n in kept] for line in lines],
    )


def scaling(found: Sequence[Series]) -> Table:
    """The exponents that the measurements have, beside those that the cards claim; each baseline once a case."""
    lines: dict[tuple[Cell, ...], tuple[Cell, ...]] = {}
    for s in found:
        for name, whose in ((s.mechanism, "ours"), (s.against, "theirs")):
            if s.exponents[whose]:
                who = text(name), *named(s)[1:]
                lines.setdefault(who, (*who, ranged(s.exponents[whose]), amounts(s.claimed[whose], rounded)))
    return table("Exponents", ("mechanism", "case", "level", "fitted", "claimed"), list(lines.values()))


def extrapolation(found: Sequence[Series]) -> Row:
    """What a regression over the shortest lengths would have said, beside what is measured."""
    tried = [s for s in found if s.extrapolated_from and s.points]
    lines = [
        (
            *named(s),
            (verdict(s), start(s) if overtakes(s) else ""),
            amounts(s.extrapolated, short) if s.extrapolated else text("never"),
            off(s),
        )
        for s in tried
    ]
    factors = [max(f, 1 / f) for s in tried if (f := factor(s)) is not None]
    missed = sum(s.crossing.kind == "measured" and s.extrapolated is None for s in tried)
    words = []
    if factors:
        words.append(
            f"Over {len(factors)} measured crossovers it is off by a factor of {rounded(median(factors))} in the "
            f"median and {rounded(max(factors))} at worst."
        )
    if missed:
        words.append(f"It sees none where one was measured: {missed} times.")
    headings = ("mechanism", "case", "level", "measured", "extrapolated", "off by")
    return {"table": table("Measured, and extrapolated", headings, lines), "words": " ".join(words)}


def factor(s: Series) -> float | None:
    """Extrapolated over measured."""
    at = s.crossing
    return s.extrapolated / at.length if s.extrapolated and at.kind == "measured" and at.length else None


def off(s: Series) -> Cell:
    at, said, by = s.crossing, s.extrapolated, factor(s)
    if by is not None:
        near = said and at.low and at.high and at.low <= said <= at.high
        way = "within the interval" if near else f"{digits(max(by, 1 / by))}{TIMES} too {'far' if by > 1 else 'near'}"
        return way, abs(log(by))
    if at.kind == "inconclusive":
        return DASH, ""
    if overtakes(s):
        return text("right" if said and said <= start(s) else "too far" if said else "sees none")
    return text("right" if not said or said > at.up_to else "wrong")


def left_out(record: Row, found: Sequence[Series]) -> Table:
    """What has no number, and why; mechanisms that break a law stand elsewhere."""
    gaps: dict[tuple[Cell, ...], list[str]] = {}
    for s in found:
        for length, why in s.left_out:
            gaps.setdefault((*named(s), text(why)), []).append(length)
    skipped = {printable(row.get("mechanism")): printable(row["skipped"]) for row in rows(record, "skipped")}
    told = {s.mechanism for s in found} | {printable(row.get("mechanism")) for row in rows(record, "failed")}
    asked = map(printable, listed(part(record, "what"), "names"))
    skipped |= {name: "the record holds nothing of it" for name in asked if name not in told | skipped.keys()}
    lines = [tuple(map(text, (name, "everything", DASH, DASH, why))) for name, why in skipped.items()] + [
        (who, case, level, text(", ".join(dict.fromkeys(lengths))), why)
        for (who, case, level, why), lengths in gaps.items()
    ]
    return table("Not measured", ("mechanism", "case", "level", "tokens", "why"), lines)


def capabilities(found: Mapping[str, Entry]) -> Table:
    """What the cards say; the laws hold every mechanism to it."""
    headings = ("mechanism", "idea", "causal", "cross", "padding", "streams", "time", "memory", "paper")
    lines = [
        (
            text(spec),
            text(entry.idea),
            text(facts.causal),
            text(cards.YES if facts.cross else cards.NO),
            text(cards.YES if facts.padding else cards.NO),
            text(cards.NO if facts.stream == "none" else cards.streams(facts)),
            (cards.order(facts.time), facts.time),
            (cards.order(facts.memory), facts.memory),
            text(", ".join([cards.short_paper(facts), *re.findall(r"arXiv:\d{4}\.\d{4,5}", facts.paper)])),
        )
        for entry in found.values()
        for spec, facts in cards.rows(entry.name, entry.card)
    ]
    return table("What the cards claim", headings, lines)


# Where it comes from


def facts(record: Row) -> list[tuple[str, list[tuple[str, str]]]]:
    """Machine, software and request, by heading."""
    limits = next((part(row, "limits") for row in rows(record, "limits")), {})
    speeds = {
        "matrix product": (positive(limits.get("operations_per_second")), "GFLOP/s"),
        "copying": (positive(limits.get("bytes_per_second")), "GB/s"),
    }
    commit = printable(record.get("commit") or "not known") + (
        " with uncommitted changes" if record.get("dirty") else ""
    )
    orders = ["causal" if causal is True else "full" for causal in listed(part(record, "what"), "orders")]
    what = part(record, "what")
    what = what | {"orders": orders, "set": options(what)} if what else {}
    return [
        (
            "Machine",
            pairs(part(record, "machine")) + [(n, f"{digits(v / 1e9)} {per}") for n, (v, per) in speeds.items() if v],
        ),
        ("Software", [*pairs(part(record, "versions")), ("commit", commit)]),
        ("Run", pairs({name: record.get(name) for name in ("started", "ended", "status", "seed")})),
        ("Request", pairs(what)),
    ]


def options(what: Row) -> list[str]:
    """Those of single mechanisms, as the command line takes them."""
    given = part(what, "set")
    return [
        f"{printable(mechanism)}.{printable(name)}={plain(value)}"
        for mechanism in given
        for name, value in part(given, mechanism).items()
    ]


def pairs(said: Row) -> list[tuple[str, str]]:
    return [(printable(name).replace("_", " "), fact(value)) for name, value in list(said.items())[:40]]


def fact(value: Any) -> str:
    """A value of the record; what is nested deeper than a list or an object is shown as it is written."""
    if isinstance(value, list):
        return printable(", ".join(map(plain, value[:40]))) or DASH
    if isinstance(value, dict):
        return printable(", ".join(f"{name} {plain(inside)}" for name, inside in list(value.items())[:40])) or DASH
    return plain(value)


def plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return {True: "yes", False: "no", None: DASH}[value] if isinstance(value, bool | None) else printable(value)


def command(record: Row) -> list[str]:
    """What to type to run the same again, word by word, quoted so that nothing else runs."""
    what = part(record, "what")
    orders = [[flag] for flag, only in (("--causal", [True]), ("--no-causal", [False])) if what.get("orders") == only]
    lists = [("--lengths", "lengths"), ("--mode", "modes"), ("--level", "levels")]
    groups = [
        ["anyformer", "crossover", *map(fact, listed(what, "names"))],
        *([flag, ",".join(map(fact, listed(what, name)))] for flag, name in lists if listed(what, name)),
        *orders,
        *(
            [f"--{name.replace('_', '-')}", fact(what[name])]
            for name in ("against", "batch", "heads", "head_dim", "dtype", "device", "threads", "budget")
            if what.get(name) is not None
        ),
        *(["--set", option] for option in options(what)),
        *([["--compile"]] if what.get("compile") is True else []),
        *([["--seed", fact(record["seed"])]] if record.get("seed") is not None else []),
    ]
    return [shlex.join(group) for group in groups if "op, else layer" not in group]
