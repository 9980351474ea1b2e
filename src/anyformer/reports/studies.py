"""What the study of the copy task found: as a page of HTML, and as Markdown with its figures.

Both have the same sections; the page shows each panel of a figure by itself, in the reader's colours.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby, zip_longest
from math import log2, prod
from statistics import mean, stdev
from typing import Any, NamedTuple

from anyformer.reports import curves, figures
from anyformer.reports import markdown as marks
from anyformer.reports.curves import POINTS, REGRESSION, Panel, Picture
from anyformer.reports.figures import SPACE, TIME, Point, Row, Series, part, printable, rounded, short, unit
from anyformer.reports.page import DASH, Cell, Table, amounts, filled, pairs, ranged, table, text, verdict
from anyformer.reports.trials import (
    LEVELS,
    PAIR,
    SEPARATOR,
    Seconds,
    Study,
    Training,
    at,
    compared,
    drawable,
    exactly,
    medians,
    meeting,
    over_seeds,
    place,
    read,
    regression,
    slower,
    state,
)

THEIRS: dict[float, tuple[float, float]] = {8: (221, 1738), 16: (236, 3004), 32: (287, 5373), 64: (416, 10_071)}
STEPS = 3000  # in which they took these seconds, with softmax and with linear
PAPER = 512  # tokens
ABOUT = (
    "Document 002 is Do and Bergner 2022, a replication of the copy task of Katharopoulos et al. 2020, Transformers "
    "are RNNs, arXiv:2006.16236; that is called the paper here. In brackets stand 95 % intervals."
)
TITLES = {"fresh": "Fresh data", "fixed": "A fixed set of 8 batches"}
UNCACHED, NAIVE = "softmax, nothing cached", "linear, naive"
WORDS = ("reproduced", "refuted", "inconclusive", "not measured")
SAMPLED = 2  # copies that are shown of each model
SCORES = {  # heading: number, and whether it is a share
    "loss, training": ("final_loss", False),
    "loss of a batch": ("final_loss_sum", False),
    "loss, fresh": ("fresh loss", False),
    "tokens": ("fresh token_accuracy", True),
    "sequences": ("fresh sequence_accuracy", True),
    "tokens, alone": ("fresh generated_token_accuracy", True),
    "sequences, alone": ("fresh generated_sequence_accuracy", True),
    "tokens, own set": ("set token_accuracy", True),
    "sequences, own set": ("set sequence_accuracy", True),
}

Block = tuple[str, Any]  # what it is, and what it says


class Section(NamedTuple):
    title: str
    blocks: list[Block]

    @property
    def id(self) -> str:
        return self.title.lower().replace(",", "").replace(" ", "-")


def sections(name: str, study: Study, verdicts: Sequence[Row]) -> list[Section]:
    return [
        Section("Verdicts", [("text", ABOUT), ("verdicts", judged(verdicts))]),
        Section("Their table, and ours", their_table(study)),
        Section("Convergence", convergence(study)),
        Section("Many more steps", long_run(study)),
        Section("After the last step", final(study)),
        Section("Where linear overtakes", overtaking(study)),
        Section("Time against length", growth(study)),
        Section("Decoding", decoding(study)),
        Section("Copies", copied(study)),
        Section("What is missing", [("list", missing(study))]),
        Section("Set-up", setup(name, study)),
    ]


# Verdicts


def headline(verdicts: Sequence[Row]) -> str:
    counted = Counter(str(row["verdict"]) for row in verdicts)
    said = ", ".join(f"{counted[word]} {word}" for word in WORDS if counted[word])
    return f"The copy task, run again: {len(verdicts)} claims, {said}"


def judged(verdicts: Sequence[Row]) -> list[Row]:
    return [
        {
            **{name: str(row[name]) for name in ("claim", "verdict", "says", "claimed", "because")},
            "by": f"document {row['document']}",
            "records": condensed([str(trial) for trial in row["records"]]),
        }
        for row in verdicts
    ]


def condensed(trials: Sequence[str]) -> list[str]:
    """Trials whose names differ in some words as one, where all combinations are there: fixed, length 8/16."""
    found = []
    for _, same in groupby(sorted(trials, key=lambda one: len(one.split())), lambda one: len(one.split())):
        names = list(dict.fromkeys(same))
        columns = [list(dict.fromkeys(words)) for words in zip(*(one.split() for one in names), strict=True)]
        whole = prod(map(len, columns)) == len(names)
        found += [" ".join("/".join(words).replace(",/", "/") for words in columns)] if whole else names
    return found


# Trainings


def convergence(study: Study) -> list[Block]:
    blocks: list[Block] = [
        (
            "text",
            "The loss in training, in nats per token: the mean over seeds, and a band of one standard deviation on "
            "each side. A point is the mean of a few steps. Guessing gives 2.30 a symbol.",
        )
    ]
    abouts = {"fresh": "New sequences in every step.", "fixed": "As document 002 did it: 8 random batches take turns."}
    for data, about in abouts.items():
        found = [t for t in study.trainings if t.data == data and t.steps == study.steps]
        drawn = losses(f"convergence-{data}", f"Loss against steps, {TITLES[data].lower()}", found)
        blocks += [("heading", TITLES[data]), ("text", about)]
        blocks.append(("picture", drawn) if drawn else ("text", "No such training has run."))
    return blocks


def losses(name: str, title: str, found: Sequence[Training], mark: float | None = None) -> Picture | None:
    """A panel for each length and activation, all with one scale."""
    drawn: dict[str, dict[str, curves.Curve]] = {}
    for (activation, length, mechanism), group in groupby(found, lambda t: (t.activation, t.length, t.mechanism)):
        if curve := over_seeds(list(group)):
            drawn.setdefault(f"{length} tokens{other(activation)}", {})[mechanism] = curve
    if not drawn:
        return None
    low, high = curves.reach(list(drawn.values()))
    panels = [
        Panel(
            title,
            "loss",
            " ".join(f"{who} ends at {curve[-1][1]:.3g}." for who, curve in by.items()),
            curves.losses(by, low, high, mark),
        )
        for title, by in drawn.items()
    ]
    return Picture(name, title, panels, sorted({who for by in drawn.values() for who in by}, key=place))


def other(activation: str) -> str:
    """Named where it is not the usual one."""
    return "" if activation == "relu" else f", {activation}"


def long_run(study: Study) -> list[Block]:
    found = [t for t in study.trainings if t.data == "fresh" and t.steps > study.steps]
    if not found:
        return [("text", "The paper trains for 10,000 steps. No such training has run.")]
    steps = short(max(t.steps for t in found))
    cases = {(t.activation, t.length, t.mechanism) for t in found}
    both = [t for t in study.trainings if t.data == "fresh" and (t.activation, t.length, t.mechanism) in cases]
    drawn = losses("convergence-long", f"Loss against steps, {steps} steps", found, study.steps)
    return [
        (
            "text",
            f"Document 002 stopped at {short(STEPS)} steps, the paper at 10,000. The dotted line stands at "
            f"{short(study.steps)} steps, where the trainings above end.",
        ),
        *([("picture", drawn)] if drawn else []),
        ("table", scores(f"After {short(study.steps)} and {steps} steps", both)),
    ]


def final(study: Study) -> list[Block]:
    blocks: list[Block] = [
        (
            "text",
            "Mean ± standard deviation over seeds. The loss in training is that of the last 50 steps for each token, "
            "and for a batch, as document 002 has it. Everything else is on fresh sequences, in percent: tokens and "
            "whole sequences that are right given the true ones before; the same where the model writes alone; and, "
            "for comparison, given the true ones on its own fixed set.",
        )
    ]
    for _, group in groupby(study.trainings, lambda t: t.group):
        found = list(group)
        blocks += [("heading", trained(found[0])), ("table", scores(trained(found[0]), found))]
    return blocks if study.trainings else [("text", "No training has run.")]


def trained(t: Training) -> str:
    return f"{TITLES[t.data]}, {short(t.steps)} steps{other(t.activation)}"


def scores(caption: str, found: Sequence[Training]) -> Table:
    """A row for each length and mechanism; one that has not run says so."""
    by: dict[tuple[int, int, str], list[Training]] = {
        (length, steps, name): []
        for length in sorted({t.length for t in found})
        for steps in sorted({t.steps for t in found})
        for name in sorted({t.mechanism for t in found}, key=place)
    }
    for t in found:
        by[t.length, t.steps, t.mechanism].append(t)
    shown = {
        heading: (key, share)
        for heading, (key, share) in SCORES.items()
        if any(key in t.numbers and (key != "final_loss_sum" or t.data == "fixed") for t in found)
    }
    several = len({t.steps for t in found}) > 1
    lines = [
        (
            amounts(length, short),
            *([amounts(steps, short)] if several else []),
            text(name),
            seeds(all_),
            *(spread([t.numbers[key] for t in all_ if key in t.numbers], share) for key, share in shown.values()),
        )
        for (length, steps, name), all_ in by.items()
    ]
    return table(caption, ("length", *(["steps"] if several else []), "mechanism", "seeds", *shown), lines)


def seeds(found: Sequence[Training]) -> Cell:
    lost = sum(t.diverged for t in found)
    return (f"{len(found)}, {lost} diverged" if lost else str(len(found)), len(found)) if found else ("not run", "")


def spread(values: Sequence[float], share: bool = False) -> Cell:
    """The mean over seeds, with the standard deviation where there is more than one."""
    if not values:
        return DASH, ""
    mean_, *more = [mean(values), *([stdev(values)] if len(values) > 1 else [])]
    said = [f"{100 * v:.1f}" for v in (mean_, *more)] if share else [f"{mean_:.3g}", *(f"{v:.2g}" for v in more)]
    return " ± ".join(said), mean_


# Timings


def sizes(what: Row) -> str:
    heads, dim, batch, layers = (printable(what.get(name)) for name in ("heads", "head_dim", "batch_size", "layers"))
    return f"{heads} heads of {dim}, {f'{layers} + {layers} layers, ' if 'layers' in what else ''}batch {batch}"


def their_table(study: Study) -> list[Block]:
    """Seconds of as many steps as theirs."""
    model = study.timings.get("model")
    ours = [medians(model, name) if model else {} for name in PAIR]
    ratios = slower(model, "linear", "softmax") if model else {}
    took: dict[tuple[str, float], list[float]] = {}
    for t in study.trainings:
        if t.group == ("fixed", STEPS, "relu") and "seconds" in t.numbers:
            took.setdefault((t.mechanism, t.length), []).append(t.numbers["seconds"])
    lines = [
        (
            amounts(n, short),
            amounts(softmax, short),
            amounts(linear, short),
            amounts(linear / softmax),
            *(amounts(STEPS * by[n] if n in by else None) for by in ours),
            ranged(ratios.get(n)),
            *(spread(took.get((name, n), [])) for name in PAIR),
        )
        for n, (softmax, linear) in THEIRS.items()
    ]
    headings = ("tokens", *(f"{what}, {whose}" for whose in ("theirs", "ours") for what in (*PAIR, "ratio")))
    about = (
        f"Ours: {sizes(model.what)}, on {figures.place(study.records[0])}; a step timed alone, times {short(STEPS)}."
        if model
        else "Ours is not measured: the timing of the whole model has not run."
    )
    return [
        (
            "text",
            f"Seconds of {short(STEPS)} training steps of the whole model; the ratio is how many times as long linear "
            f"takes. Theirs: 8 heads of 64, 4 + 4 layers, batch 8, on an Nvidia Quadro P4000. {about} The last columns "
            "are what the trainings on the fixed set took, beside one another. Between different sizes and machines "
            "ratios compare, seconds do not.",
        ),
        ("table", table("Their table, and ours", (*headings, *(f"{name}, trained" for name in PAIR)), lines)),
    ]


def theirs() -> list[Series]:
    """The two regressions of document 002, and its points; in seconds of a step."""
    a, c, d, b = regression(THEIRS)
    lines = {2.0**k: (a + c * 4.0**k, d + b * 2.0**k) for k in range(3, 13)}

    def those(seconds: Seconds, what: str) -> Series:
        points = [
            Point(n, exactly(s / l), exactly(l / STEPS), exactly(s / STEPS), True, None)
            for n, (s, l) in seconds.items()
        ]
        found = at(meeting(THEIRS)) if what == REGRESSION else None
        return drawable("linear, document 002" + what, "softmax, document 002" + what, points, found)

    return [those(lines, REGRESSION), those(THEIRS, POINTS)]


def overtaking(study: Study) -> list[Block]:
    """All crossings in one picture: document 002's, the paper's and ours."""
    timed = {f"linear, {LEVELS[level]}": study.timings.get(level) for level in ("layer", "model")}
    ours = [compared(t, "linear", called=name) for name, t in timed.items() if t]
    said = {s.mechanism: verdict(s).removeprefix("at ").removesuffix(" tokens") for s in ours}
    found = meeting(THEIRS) or 0.0
    lines = [
        (text("document 002: two regressions from 8 to 64"), amounts(found, short)),
        (text("the paper, as document 002 has it"), amounts(PAPER, short)),
        *((text(f"{name}: measured"), (said.get(name, "not measured"), "")) for name in timed),
    ]
    for name, t in timed.items():
        by = {who: medians(t, who) if t else {} for who in PAIR}
        same = {n: (by["softmax"][n], by["linear"][n]) for n in THEIRS if n in by["softmax"] and n in by["linear"]}
        if len(same) == len(THEIRS):
            told = meeting(same)
            said_ = amounts(told, short) if told else ("they do not meet", "")
            lines.append((text(f"{name}: the same regressions from 8 to 64"), said_))
    layer, model = timed.values()
    panels = [
        Panel(
            "Whole model",
            "time of a training step",
            f"The regressions of document 002 meet at {short(found)} tokens.",
            curves.costs([*(s for s in ours if s.mechanism.endswith("model")), *theirs()]),
        ),
        Panel(
            "All crossings",
            "times as fast as softmax",
            " ".join(f"{who[0]}: {length[0]}." for who, length in lines),
            curves.ratios([*ours, *theirs(), drawable("the paper", "softmax", [], at(PAPER))]),
        ),
    ]
    legend = [*(["softmax"] if model else []), *said, "softmax, document 002", "linear, document 002", "the paper"]
    return [
        (
            "text",
            "Document 002 measured four lengths, fitted a + c N² to softmax and d + b N to linear (dashed), and let "
            f"the two meet at {short(found)} tokens; that is 2 to the power of {log2(found):.1f}, which it calls 12. "
            "Rings mark from where on linear stays faster, with the interval where one was measured."
            + (f" The layer ({sizes(layer.what)}) is causal." if layer else ""),
        ),
        ("picture", Picture("crossover", "From which length on linear attention is faster", panels, legend)),
        ("table", table("Crossings", ("what", "tokens"), lines)),
    ]


def growth(study: Study) -> list[Block]:
    """Time against length, and what a naive form costs where theirs was measured."""
    blocks: list[Block] = []
    timed = [study.timings[level] for level in ("layer", "model") if level in study.timings]
    brief = study.timings.get("short")
    panels = [
        Panel(
            LEVELS[t.what["level"]].capitalize(),
            "time of a training step",
            " ".join(f"{name}: exponent {one.median:.2f}." for name, one in t.exponents.items() if one),
            curves.costs([compared(t, name) for name in t.seconds if name != "softmax"]),
        )
        for t in timed
    ]
    if brief:
        found = [compared(brief, name) for name in brief.seconds if name != "softmax"]
        about = "The whole model of document 002 beside one layer here."
        panels.append(
            Panel("One layer, short", "times as fast as softmax", about, curves.ratios([*found, theirs()[1]]))
        )
    if panels:
        names = {name for t in study.timings.values() if t.what["level"] != "decode" for name in t.seconds}
        legend = [*sorted(names, key=place), *(["linear, document 002"] if brief else [])]
        blocks += [
            (
                "text",
                "A training step, forward and backward, of "
                + "; ".join(f"{LEVELS[t.what['level']]} ({sizes(t.what)})" for t in (*timed, *filter(None, [brief])))
                + ". The naive form is causal linear attention as array operations: it holds the running sums of every "
                "position, where ours holds those of a block, and ends where they take too much memory.",
            ),
            ("picture", Picture("scaling", "Time against length", panels, legend)),
        ]
    if timed:
        lines = [
            (
                text(LEVELS[t.what["level"]]),
                text(name),
                ranged(t.exponents[name]),
                (f"{short(min(by))} to {short(max(by))}", max(by)) if by else (DASH, ""),
            )
            for t in timed
            for name, by in t.seconds.items()
        ]
        blocks += [
            ("text", "Time is fitted as a + b N to the power of p; p is the exponent below."),
            ("table", table("Exponents", ("what", "mechanism", "exponent", "tokens"), lines)),
        ]
    if brief:
        ours, naive = (slower(brief, name, "softmax") for name in ("linear", NAIVE))
        rows = [
            (amounts(n, short), amounts(linear / softmax), ranged(ours.get(n)), ranged(naive.get(n)))
            for n, (softmax, linear) in THEIRS.items()
        ]
        blocks += [
            (
                "text",
                "How many times as long as softmax linear takes where document 002 measured it, and the naive form.",
            ),
            ("table", table("Times as long as softmax", ("tokens", "document 002", "linear", NAIVE), rows)),
        ]
    return blocks or [("text", "None of these timings has run.")]


def decoding(study: Study) -> list[Block]:
    t = study.timings.get("decode")
    if t is None:
        return [("text", "The timing of decoding has not run.")]
    against = {name: slower(t, name, "linear") for name in ("softmax", UNCACHED) if name in t.seconds}
    took = {name: medians(t, name) for name in ("linear", *against)}
    last = " ".join(f"{name}: {seconds(by.get(max(t.lengths)))[0]}." for name, by in took.items())
    panels = [Panel("One more token", "time", last, curves.costs([compared(t, "linear", name) for name in against]))]
    if held := state(t):
        panels.append(Panel("State", "bytes", "", curves.costs([drawable("linear", "softmax", held, held=True)])))
    lines = [
        (
            amounts(n, short),
            *(seconds(by.get(n)) for by in took.values()),
            *(ranged(ratios.get(n)) for ratios in against.values()),
            *(size(t.held.get(name, {}).get(n)) for name in PAIR[::-1]),
        )
        for n in t.lengths
    ]
    called = {"softmax": "KV cache", UNCACHED: "nothing cached"}
    headings = (
        *("tokens before", "linear"),
        *(called[name] for name in against),
        *(f"{called[name]} / linear" for name in against),
        *("state, linear", "state, softmax"),
    )
    return [
        (
            "text",
            f"One more token after so many: its time, and the bytes carried on ({sizes(t.what)}). Softmax either keeps "
            "its keys and values or caches nothing and computes all of it again, which is what the paper's figure of "
            "more than 4,000 times stands against. An image of MNIST has 784 tokens, one of CIFAR-10 has 3,072; the "
            "verdict above adds up the tokens of a whole image.",
        ),
        ("picture", Picture("decoding", "One more token after so many", panels, sorted(took, key=place))),
        ("table", table("Decoding", headings, lines)),
    ]


def seconds(value: float | None) -> Cell:
    return amounts(value, lambda s: rounded(s, *unit(s, TIME)))


def size(value: float | None) -> Cell:
    return amounts(value, lambda b: rounded(b, *unit(b, SPACE)))


# What else a reader asks


def copied(study: Study) -> list[Block]:
    """What models of the first seed wrote."""
    blocks: list[Block] = []
    first = [t for t in study.trainings if t.seed == study.seeds[0]]
    for _, group in groupby(first, lambda t: (*t.group, t.length)):
        found = list(group)
        sources: dict[str, list[Row]] = {}
        for t in found:
            for source, copy in t.samples[:SAMPLED]:
                wanted = [*source, SEPARATOR]
                pairs_ = [(symbol(c), c == w) for c, w in zip_longest(copy, wanted, fillvalue=-1)]
                wrong = sum(not right for _, right in pairs_)
                line = {"who": t.mechanism, "written": pairs_, "wrong": f"{wrong} wrong" if wrong else "right"}
                sources.setdefault("".join(map(symbol, wanted)), []).append(line)
        if sources:
            title = f"{trained(found[0])}, {found[0].length} tokens"
            blocks.append(("samples", {"title": title, "sources": list(sources.items())}))
    about = (
        "Fresh sequences, and what the models of the first seed wrote by themselves. Wrong symbols are marked; | is "
        "the separator that ends a sequence."
    )
    return [("text", about), *blocks] if blocks else [("text", "No training has left copies.")]


def symbol(token: int) -> str:
    return "|" if token == SEPARATOR else str(token) if token >= 0 else "?"


def missing(study: Study) -> list[str]:
    """As far as the other records tell."""
    found = [f"{why}: the record cannot be read, so nothing here is from it." for why in study.unread]
    for _, group in groupby(study.trainings, lambda t: t.group):
        there = list(group)
        done = {(t.length, t.mechanism, t.seed): t for t in there}
        for length in sorted({t.length for t in there}):
            for name in sorted({t.mechanism for t in there}, key=place):
                case = f"{trained(there[0])}, {name}, {length} tokens"
                gone = [str(seed) for seed in study.seeds if (length, name, seed) not in done]
                lost = [str(t.seed) for t in there if (t.length, t.mechanism, t.diverged) == (length, name, True)]
                found += [f"{case}: not run with seed {', '.join(gone)}."] if gone else []
                found += [f"{case}: diverged with seed {', '.join(lost)}, and has only its curve."] if lost else []
    for level, title in LEVELS.items():
        t = study.timings.get(level)
        if t is None:
            found.append(f"Timing of {title}: not run.")
            continue
        gaps = {"no time was left": t.left_out} | {
            f"{name} was not run": [n for n in t.lengths if n not in by] for name, by in t.seconds.items()
        }
        found += [
            f"Timing of {title}: {why} at {', '.join(map(short, gap))} tokens." for why, gap in gaps.items() if gap
        ]
    return found or ["Nothing: what has run with one seed has run with all, and at all lengths."]


def setup(name: str, study: Study) -> list[Block]:
    """Everything that decides the numbers."""
    records = study.records
    if not records:
        return [("text", "No trial has run.")]
    whats = [part(record, "what") for record in records]
    named = ("study", "preset", "trial", "part", "level")
    asked = [{key: value for key, value in what.items() if key not in named} for what in whats]
    preset = printable(whats[0].get("preset"))
    run = {
        "preset": preset,
        "seeds": ", ".join(map(str, study.seeds)) or DASH,
        "trials": str(len(records)),
        "first started": min(printable(record.get("started")) for record in records),
        "last ended": max(printable(record.get("ended")) for record in records),
    }
    commits = [
        {"commit": printable(r.get("commit") or "not known")[:12] + " with changes" * (r.get("dirty") is True)}
        for r in records
    ]
    facts = {
        "Run": run,
        "Trainings": every([row for row, what in zip(asked, whats, strict=True) if what.get("part") != "timing"]),
        **{
            f"Timing of {LEVELS[what['level']]}": every([row])
            for row, what in zip(asked, whats, strict=True)
            if what.get("part") == "timing" and str(what.get("level")) in LEVELS
        },
        "Machine": every([part(record, "machine") for record in records]),
        "Software": every([part(record, "versions") for record in records]) | every(commits),
    }
    words = ["anyformer", "study", name, "--preset", preset, "--seeds", str(max(study.seeds, default=0) + 1)]
    return [
        ("facts", [(heading, list(said.items())) for heading, said in facts.items()]),
        ("text", "To run it again, or to go on where it stopped:"),
        ("command", shlex.join(words)),
    ]


def every(said: Sequence[Row]) -> dict[str, str]:
    """Each fact with all of its values."""
    found: dict[str, dict[str, None]] = {}
    for row in said:
        for name, value in pairs(row):
            found.setdefault(name, {})[value] = None
    return {name: ", ".join(sorted(values, key=lambda v: (len(v), v))) for name, values in found.items()}


# The two forms


def page(name: str, records: Sequence[Row], verdicts: Sequence[Row]) -> str:
    """One file of HTML that needs no network."""
    study = read(name, records)
    shown = [
        section._replace(blocks=[(kind, parts(said) if kind == "picture" else said) for kind, said in section.blocks])
        for section in sections(name, study, verdicts)
    ]
    where = figures.place(study.records[0]) if study.records else ""
    return filled("study.html", name=name, place=where, headline=headline(verdicts), sections=shown)


def parts(picture: Picture) -> Row:
    return {"legend": curves.swatches(picture), "panels": curves.panels(picture)}


def markdown(name: str, records: Sequence[Row], verdicts: Sequence[Row]) -> dict[str, str]:
    """The text and its figures, by their file names."""
    files: dict[str, str] = {}
    lines = [
        f"# Study: {name}",
        f"Written by `make docs` from `records/{name}.jsonl`; change nothing here.",
        f"**{marks.plain(headline(verdicts))}.**",
    ]
    for section in sections(name, read(name, records), verdicts):
        lines.append(f"## {section.title}")
        for kind, said in section.blocks:
            if kind == "picture":
                file = f"{name}-{said.name}.svg"
                files[file] = curves.sheet(said)
                lines.append(f"![{marks.plain(said.label)}]({file})")
            else:
                lines.append(MARKS[kind](said))
    return {f"{name}.md": "\n\n".join(lines) + "\n", **files}


def marked_table(said: Table) -> str:
    headings = [marks.plain(heading) for heading, _ in said["headings"]]
    return marks.table(headings, [[marks.plain(shown) for shown, _ in line] for line in said["lines"]])


def marked_verdicts(said: Sequence[Row]) -> str:
    lines = [
        [
            f"{marks.plain(row['claim'])}: **{marks.plain(row['verdict'])}**",
            marks.linked(f"{row['says']} ({row['by']}: {row['claimed']})"),
            marks.plain(row["because"]),
            marks.plain("; ".join(row["records"])) or DASH,
        ]
        for row in said
    ]
    return marks.table(("claim", "what is claimed", "what was found", "trials that decide"), lines)


def marked_samples(said: Row) -> str:
    """Wrong symbols have a caret below."""
    wide = max(len(copy["who"]) for _, copies in said["sources"] for copy in copies)
    lines: list[str] = []
    for source, copies in said["sources"]:
        lines += [*([""] if lines else []), f"{'source':>{wide}}  {source}"]
        for copy in copies:
            carets = "".join(" " if right else "^" for _, right in copy["written"]).rstrip()
            lines.append(f"{copy['who']:>{wide}}  {''.join(shown for shown, _ in copy['written'])}")
            lines += [f"{'':>{wide}}  {carets}"] if carets else []
    return "\n".join([f"{marks.plain(said['title'])}:", "", "```text", *lines, "```"])


def marked_facts(said: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    lines = [(heading, "; ".join(f"{name}: {value}" for name, value in facts)) for heading, facts in said]
    return "\n".join(
        f"- **{marks.plain(heading)}**: {marks.plain(facts) or 'not recorded'}" for heading, facts in lines
    )


MARKS: dict[str, Callable[[Any], str]] = {
    "text": marks.linked,
    "heading": lambda said: f"### {marks.plain(said)}",
    "table": marked_table,
    "verdicts": marked_verdicts,
    "samples": marked_samples,
    "list": lambda said: "\n".join(f"- {marks.plain(one)}" for one in said),
    "facts": marked_facts,
    "command": lambda said: f"```sh\n{said}\n```",
}
