"""A crossover record as series of points, and these as figures: SVGs that take their colours from the page around them.

Whatever stands in a record is checked before it is drawn: it may have been written by anybody.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from math import ceil, exp, floor, log, log2
from typing import Any, NamedTuple

Row = dict[str, Any]

MODES = {"forward": "forward pass", "train": "training", "decode": "decoding"}
LEVELS = {"op": "attention alone", "layer": "whole layer", "model": "whole model"}
KINDS = ("measured", "from the first length", "none", "inconclusive")
LARGEST = 1e15  # of any number that is drawn; and the smallest is one over it
LONGEST = 200  # characters of a text


@contextmanager
def extra() -> Iterator[None]:
    """Around the imports that a plain installation lacks."""
    try:
        yield
    except ImportError as missing:
        raise ImportError(f"{missing.name} is missing: pip install 'anyformer[report]'") from None


# What a record says


class Interval(NamedTuple):
    median: float
    low: float
    high: float


class Point(NamedTuple):
    length: float
    ratio: Interval | None  # baseline over mechanism
    ours: Interval | None  # seconds or bytes
    theirs: Interval | None
    sure: bool
    over_floor: Interval | None


class Crossing(NamedTuple):
    kind: str
    length: float | None
    low: float | None
    high: float | None
    up_to: float


class Series(NamedTuple):
    """One mechanism against one baseline over all lengths."""

    mechanism: str
    against: str
    level: str
    mode: str
    memory: bool
    causal: bool
    points: list[Point]
    crossing: Crossing
    exponents: dict[str, Interval | None]  # fitted
    claimed: dict[str, float | None]
    extrapolated: float | None
    extrapolated_from: list[float]  # empty where nothing was extrapolated
    left_out: list[tuple[str, str]]  # length, why

    @property
    def case(self) -> tuple[int, bool, int, bool]:
        """What is compared within one table or figure, in the order of the page."""
        return list(LEVELS).index(self.level), self.memory, list(MODES).index(self.mode), self.causal


def printable(value: Any) -> str:
    """A text of the record on one line, without characters that turn the writing round or are none."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested without end, or a whole number of thousands of digits
        text = "?"
    return cut("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split())), LONGEST)


def cut(text: str, most: int = 24) -> str:
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def number(value: Any) -> float | None:
    """A number that can be drawn or written, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        return None
    return float(value)


def positive(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and found >= 1 / LARGEST else None


def interval(value: Any, read: Callable[[Any], float | None] = positive) -> Interval | None:
    if not isinstance(value, dict):
        return None
    median, low, high = (read(value.get(name)) for name in Interval._fields)
    if median is None or low is None or high is None or not low <= median <= high:
        return None
    return Interval(median, low, high)


def part(row: Row, name: str) -> Row:
    """An object within an object, empty where it is none."""
    found = row.get(name)
    return found if isinstance(found, dict) else {}


def listed(row: Row, name: str) -> list[Any]:
    found = row.get(name)
    return found if isinstance(found, list) else []


def series(row: Row) -> Series:
    """A row that compares; a ValueError says why it cannot be read."""
    for name in ("mechanism", "against"):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise ValueError(f"its {name!r} is {row.get(name)!r}, which is no name")
    mode, _, memory = str(row.get("mode")).partition(" ")
    if mode not in MODES or memory not in ("", "memory"):
        raise ValueError(f"its mode {row.get('mode')!r} is unknown")
    if row.get("level") not in list(LEVELS):
        raise ValueError(f"its level {row.get('level')!r} is unknown")
    if not isinstance(row.get("causal"), bool):
        raise ValueError(f"its 'causal' is {row.get('causal')!r}, neither true nor false")
    lengths = [positive(length) for length in listed(row, "lengths")]
    if None in lengths:
        raise ValueError("its lengths are not all numbers above 0")
    left_out = [gap for gap in listed(row, "left_out") if isinstance(gap, dict)]
    if not lengths and not left_out:
        raise ValueError("it has neither lengths nor a reason why there are none")
    values = part(row, "values")
    columns: list[list[Any]] = []
    for name, inside in (
        ("ratios", row),
        ("mechanism", values),
        ("against", values),
        ("status", row),
        ("over_floor", row),
    ):
        column = listed(inside, name) or [None] * len(lengths)
        if len(column) != len(lengths):
            raise ValueError(f"it has {len(lengths)} lengths, but {len(column)} of {name!r}")
        columns.append(column)
    points = [
        Point(length, interval(ratio), interval(ours), interval(theirs), status == "measured", interval(floor))
        for length, ratio, ours, theirs, status, floor in zip(lengths, *columns, strict=True)
        if length is not None
    ]
    said, method = part(row, "crossover"), row.get("extrapolated")
    crossing = Crossing(
        kind=said.get("kind", ""),
        length=positive(said.get("length")),
        low=positive(said.get("low")),
        high=positive(said.get("high")),
        up_to=positive(said.get("up_to")) or max((p.length for p in points), default=0.0),
    )
    if crossing.kind not in KINDS or (crossing.kind == "measured" and crossing.length is None):
        raise ValueError("its crossover is not one that can be read")
    return Series(
        mechanism=printable(row["mechanism"]),
        against=printable(row["against"]),
        level=row["level"],
        mode=mode,
        memory=bool(memory),
        causal=row["causal"],
        points=sorted(points, key=lambda p: p.length),
        crossing=crossing,
        exponents={
            "ours": interval(row.get("exponent"), number),
            "theirs": interval(row.get("against_exponent"), number),
        },
        claimed={"ours": number(row.get("claimed_exponent")), "theirs": number(row.get("against_claimed_exponent"))},
        extrapolated=positive(method.get("length")) if isinstance(method, dict) else None,
        extrapolated_from=[n for n in map(positive, listed(method, "from")) if n] if isinstance(method, dict) else [],
        left_out=[(short(positive(gap.get("length")) or 0), printable(gap.get("why"))) for gap in left_out],
    )


def all_series(record: Row) -> tuple[list[Series], list[str]]:
    """Those of a record in the order of the page, and what could not be read."""
    found, unread = [], []
    for n, row in enumerate(listed(record, "results"), 1):
        if isinstance(row, dict) and "crossover" in row:
            try:
                found.append(series(row))
            except ValueError as why:
                unread.append(f"row {n}: {printable(str(why))}")
    return sorted(found, key=lambda s: s.case), unread


def baseline(record: Row, found: Sequence[Series]) -> str:
    """The one that the record names, and else the first."""
    named = printable(part(record, "what").get("against"))
    return named if any(s.against == named for s in found) or not found else found[0].against


def place(record: Row) -> str:
    """Where it ran, in a few words."""
    machine = part(record, "machine")
    words = [printable(machine[fact]) for fact in ("processor", "gpu") if machine.get(fact)]
    return ", ".join([*words, f"{printable(machine['cores'])} cores"] if machine.get("cores") else words)


def case_title(s: Series) -> str:
    """Training, causal; training memory, causal."""
    return f"{MODES[s.mode].capitalize()}{' memory' if s.memory else ''}, {order(s)}"


def order(s: Series) -> str:
    return "causal" if s.causal else "full"


# Colours: stand-ins that the page's style sheet or a palette replaces

INK, RULE, SURFACE = "#010101", "#020202", "#030303"
LINES = tuple(f"#04040{n}" for n in range(6))
NAMES = {INK: "ink", RULE: "rule", SURFACE: "surface"} | {line: f"line{n}" for n, line in enumerate(LINES)}
LIGHT = {"ink": "#1b1c1e", "rule": "#dcdcd8", "surface": "#ffffff"} | {
    f"line{n}": line for n, line in enumerate(("#0072b2", "#d1520a", "#00875f", "#b0468f", "#a87900", "#6f7782"))
}
DARK = {"ink": "#e9e7e2", "rule": "#383b40", "surface": "#16181b"} | {
    f"line{n}": line for n, line in enumerate(("#5ab4ec", "#ff8f4a", "#35c99d", "#ec92cf", "#e3c02f", "#a5acb6"))
}
MARKERS = "os^Dv<>P"
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)))


class Style(NamedTuple):
    colour: str
    marker: str
    dash: Any
    width: float


def styles(found: Sequence[Series]) -> dict[str, Style]:
    """One for each name, the same in all figures: baselines in ink, mechanisms in colours."""
    baselines = sorted({s.against for s in found}, key=len)
    others = sorted({s.mechanism for s in found} - set(baselines))
    return {name: Style(INK, "", DASHES[min(n, 2)], 2.2) for n, name in enumerate(baselines)} | {
        name: Style(LINES[n % len(LINES)], MARKERS[n % len(MARKERS)], DASHES[n // len(LINES) % len(DASHES)], 1.7)
        for n, name in enumerate(others)
    }


# Figures


def ratios(found: Sequence[Series], of: Mapping[str, Style], salt: str, label: str) -> str:
    """The baseline's cost over each mechanism's, against length; the line at 1 is the baseline. Maybe nothing."""
    found = [s for s in found if any(p.ratio for p in s.points)]

    def draw(figure: Any) -> None:
        ax = room(figure)
        scale_ratios(ax, *draw_ratios(ax, found, of))

    return drawn(draw, salt, label) if found else ""


def costs(found: Sequence[Series], of: Mapping[str, Style], salt: str, label: str) -> str:
    """Seconds or bytes against length, of the mechanisms and the baselines; maybe nothing."""
    found = [s for s in found if any(p.ours or p.theirs for p in s.points)]
    if not found:
        return ""
    return drawn(lambda figure: draw_costs(room(figure), found, of), salt, label)


def swatch(style: Style) -> str:
    """A line as it stands in the figures, for their legend; without ids, so that it may stand anywhere."""

    def draw(figure: Any) -> None:
        from matplotlib.markers import MarkerStyle
        from matplotlib.patches import PathPatch
        from matplotlib.transforms import Affine2D

        ax = figure.add_axes((0, 0, 1, 1), xlim=(0, 28), ylim=(0, 10))
        ax.set_axis_off()
        ax.plot([1, 27], [5, 5], color=style.colour, lw=style.width, ls=style.dash, clip_on=False)
        if style.marker:
            marker = MarkerStyle(style.marker)
            place = marker.get_transform() + Affine2D().scale(5.5).translate(14, 5)
            path = marker.get_path().transformed(place)
            ax.add_patch(PathPatch(path, fc=style.colour, lw=0, clip_on=False, zorder=3))

    return drawn(draw, "swatch", "", size=(28, 10))


def matrix(weights: Sequence[Sequence[float]], label: str) -> str:
    """Each weight as a square, as dark as its share of the row's largest; exactly zero stays blank."""
    shades: dict[tuple[str, int], list[str]] = {}
    for y, row in enumerate(weights):
        largest = max(map(abs, row)) or 1.0
        for x, weight in enumerate(row):
            if weight:
                shade = ("line0" if weight > 0 else "line1"), max(1, round(16 * abs(weight) / largest))
                shades.setdefault(shade, []).append(f"M{x} {y}h1v1h-1z")
    paths = "".join(
        f'<path d="{"".join(squares)}" style="fill: var(--{colour}); fill-opacity: {shade / 16:g}"/>'
        for (colour, shade), squares in sorted(shades.items())
    )
    side = len(weights)
    return (
        f'<svg viewBox="0 0 {side} {side}" role="img" aria-label="{escape(label)}" shape-rendering="crispEdges">'
        f"{paths}</svg>"
    )


def crossing(record: Row) -> str:
    """One picture of a record that stands alone: ratios against length, and where each mechanism overtakes."""
    every, _ = all_series(record)
    against = baseline(record, every)
    timed = [s for s in every if not s.memory and s.against == against and any(p.ratio for p in s.points)]
    if not timed:
        raise ValueError("the record holds no comparison of times, so there is nothing to draw: measure again")
    mode = next(mode for mode in ("train", "forward", "decode") if any(s.mode == mode for s in timed))
    timed = [s for s in timed if s.mode == mode]
    timed = [s for s in timed if s.level == timed[0].level]
    orders = sorted({s.causal for s in timed})
    of = styles(every)
    where = ", ".join(filter(None, (MODES[mode].capitalize(), LEVELS[timed[0].level], place(record))))
    title = f"Where attention mechanisms overtake {cut(against)}"
    key = "Rings: from here on it stays ahead, with the 95 % interval. Bands: 95 % intervals. Hollow: inconclusive."
    width, height, left = 400 + 230 * len(orders), 430, 44
    labels = 12 + 7 * max(len(cut(s.mechanism)) for s in timed)
    span = (width - 14) / len(orders)

    def draw(figure: Any) -> None:
        figure.text(14 / width, 1 - 30 / height, title, fontsize=17, color=INK, weight="bold", parse_math=False)
        figure.text(14 / width, 1 - 52 / height, where, fontsize=11, color=INK, parse_math=False)
        figure.text(14 / width, 14 / height, key, fontsize=10, color=INK, parse_math=False)
        first: Any = None
        reach: list[float] = []
        for n, causal in enumerate(orders):
            box = ((left + n * span) / width, 68 / height, (span - left - labels) / width, 1 - 172 / height)
            ax = figure.add_axes(box, sharey=first)
            first = first or ax
            reach += draw_ratios(ax, [s for s in timed if s.causal == causal], of)
            head = f"{'Causal' if causal else 'Full'}: times as fast as {cut(against)}"
            ax.set_title(head, fontsize=11, color=INK, loc="left", pad=10, parse_math=False)
        scale_ratios(first, min(reach), max(reach))
        for ax, causal in zip(figure.axes, orders, strict=True):
            name_ends(ax, [s for s in timed if s.causal == causal], of)

    return drawn(draw, "crossing", f"{title}. {where}", size=(width, height), palette=LIGHT)


# Drawing


def room(figure: Any) -> Any:
    """The one panel of a small figure, with room for its ticks."""
    width, height = figure.get_size_inches() * 72
    return figure.add_axes((56 / width, 36 / height, 1 - 74 / width, 1 - 46 / height))


def line(style: Style) -> dict[str, Any]:
    return {
        "color": style.colour,
        "lw": style.width,
        "ls": style.dash,
        "marker": style.marker,
        "ms": 4.2,
        "mec": style.colour,
        "mew": 1,
    }


def draw_ratios(ax: Any, found: Sequence[Series], of: Mapping[str, Style]) -> tuple[float, float]:
    """Returns how low and high the lines reach."""
    ax.axhline(1, color=INK, lw=2.2, zorder=1.5)
    lines = [(of[s.mechanism], [(p.length, p.ratio, p.sure) for p in s.points if p.ratio]) for s in found]
    low, high = draw_lines(ax, lines)
    crossings = sorted((s for s in found if s.crossing.kind == "measured"), key=lambda s: s.crossing.length or 0)
    taken: list[float] = []  # where the last number of each row ends, in octaves
    first, last = map(log2, ax.get_xlim())
    pixel = (last - first) / ax.get_window_extent().width
    for s in crossings:
        at = s.crossing.length or 1.0
        ring(ax, s, 1.0, of[s.mechanism].colour)
        half = (4 + 3.5 * len(short(at))) * pixel
        row = next((n for n, end in enumerate(taken) if log2(at) - half > end), len(taken))
        taken[row : row + 1] = [log2(at) + half]
        ax.annotate(
            short(at),
            (at, 1),
            xytext=(0, -17 - 11 * row),
            textcoords="offset points",
            ha="center",
            color=of[s.mechanism].colour,
            fontsize=10,
            weight="bold",
        )
    return low, high


def scale_ratios(ax: Any, low: float, high: float) -> None:
    """Octaves around 1, the smaller ones as fractions."""
    low, high = min(low, 0.8), max(high, 1.25)
    ax.set_ylim(low / 1.15, high * 1.15)
    first, last = ceil(log2(low / 1.15)), floor(log2(high * 1.15))
    step = 1 + (last - first) // 7
    powers = [k for k in range(first, last + 1) if k % step == 0]
    ax.set_yticks([2.0**k for k in powers], [short(2.0**k) if k >= 0 else f"1/{short(2.0**-k)}" for k in powers])


def draw_costs(ax: Any, found: Sequence[Series], of: Mapping[str, Style]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    values: dict[str, dict[float, tuple[Interval, bool]]] = {}
    for s in found:
        for p in s.points:
            if p.theirs:
                values.setdefault(s.against, {}).setdefault(p.length, (p.theirs, True))
            if p.ours:
                values.setdefault(s.mechanism, {})[p.length] = p.ours, p.sure
    lines = [(of[name], [(n, *value) for n, value in sorted(by.items())]) for name, by in values.items()]
    low, high = draw_lines(ax, lines)
    for s in found:
        where = between([(p.length, p.ours.median) for p in s.points if p.ours], s.crossing.length)
        if s.crossing.kind == "measured" and where:
            ring(ax, s, where, of[s.mechanism].colour)
    ax.set_ylim(low / 1.4, high * 1.4)
    subs = (1.0,) if found[0].memory or high / low > 50 else (1.0, 2.0, 5.0)
    ax.yaxis.set_major_locator(LogLocator(base=2 if found[0].memory else 10, subs=subs, numticks=6))
    units = SPACE if found[0].memory else TIME
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rounded(value, *unit(value, units))))


def draw_lines(ax: Any, lines: Sequence[tuple[Style, Sequence[tuple[float, Interval, bool]]]]) -> tuple[float, float]:
    """Lines with bands in a plain frame; returns how low and high they reach."""
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for style, points in lines:
        lengths, intervals = [p[0] for p in points], [p[1] for p in points]
        low, high = [i.low for i in intervals], [i.high for i in intervals]
        ax.fill_between(lengths, low, high, color=style.colour, alpha=0.16, lw=0)
        alone = {"marker": style.marker or "o"} if len(points) == 1 else {}
        ax.plot(lengths, [i.median for i in intervals], **line(style) | alone, solid_capstyle="round", clip_on=False)
        unsure = [(length, i.median) for length, i, sure in points if not sure]
        if unsure:
            ax.plot(
                *zip(*unsure, strict=True), **line(style) | {"ls": "", "mfc": SURFACE, "marker": style.marker or "o"}
            )
    every = sorted(point[0] for _, points in lines for point in points)
    reach = [bound for _, points in lines for _, i, _ in points for bound in (i.low, i.high)]
    first, last = (every[0], every[-1]) if every[0] < every[-1] else (every[0] / 2, every[0] * 2)
    ax.set_xlim(first / 1.12, last * 1.12)
    powers = range(ceil(log2(first)), floor(log2(last)) + 1)
    ticks = [2.0**k for k in powers[:: ceil(len(powers) / 6) or 1]] or [first]
    ax.set_xticks(ticks, [short(tick) for tick in ticks])
    frame(ax, "tokens")
    return min(reach), max(reach)


def frame(ax: Any, along: str) -> None:
    """A plain one; `along` is what the horizontal axis counts."""
    ax.minorticks_off()
    ax.tick_params(colors=INK, length=0, labelsize=11, pad=5)
    ax.grid(axis="y", color=RULE, lw=0.8)
    ax.set_axisbelow(True)
    for side in ax.spines:
        ax.spines[side].set_visible(side == "bottom")
    ax.spines["bottom"].set_color(RULE)
    ax.set_xlabel(along, fontsize=11, color=INK, loc="right", labelpad=1)


def ring(ax: Any, s: Series, at: float, colour: str) -> None:
    """Where it overtakes, with the interval."""
    length, low, high = s.crossing.length, s.crossing.low, s.crossing.high
    if low and high:
        ax.plot([low, high], [at, at], color=colour, lw=6, alpha=0.35, solid_capstyle="butt", zorder=3)
    ax.plot([length], [at], marker="o", ms=7.5, mfc=SURFACE, mec=colour, mew=1.8, ls="", zorder=4)


def name_ends(ax: Any, found: Sequence[Series], of: Mapping[str, Style]) -> None:
    """Each name beside the end of its line, moved apart where they would overlap."""
    ends = [(s.mechanism, next(p for p in reversed(s.points) if p.ratio)) for s in found]
    places = sorted((ax.transData.transform((1, p.ratio.median if p.ratio else 1))[1], name) for name, p in ends)
    step, heights = 14 * ax.figure.dpi / 72, [place for place, _ in places]
    for n in range(1, len(heights)):
        heights[n] = max(heights[n], heights[n - 1] + step)
    top = ax.bbox.y1 + step
    heights = [min(height, top - n * step) for n, height in zip(reversed(range(len(heights))), heights, strict=True)]
    for height, (_, name) in zip(heights, places, strict=True):
        y = ax.transAxes.inverted().transform((0, height))[1]
        ax.text(
            1.02,
            y,
            cut(name),
            transform=ax.transAxes,
            va="center",
            color=of[name].colour,
            fontsize=12,
            parse_math=False,
        )


def between(points: Sequence[tuple[float, float]], length: float | None) -> float | None:
    """The value at a length, along straight lines between logarithms."""
    for (n, y), (m, z) in pairwise(points):
        if length and n <= length <= m and n < m:
            return exp(log(y) + (log(z) - log(y)) * log(length / n) / log(m / n))
    return None


def drawn(
    draw: Callable[[Any], None],
    salt: str,
    label: str,
    size: tuple[float, float] = (352, 240),
    palette: Mapping[str, str] | None = None,
) -> str:
    """The SVG that a function draws: a part of the page, or with a palette a picture that stands alone."""
    import warnings

    with extra():
        import matplotlib.style
        from matplotlib.figure import Figure

    settings = {"svg.fonttype": "none", "svg.hashsalt": salt, "text.parse_math": False, "path.simplify": False}
    text = io.StringIO()
    with matplotlib.style.context(["default", settings], after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name in letters that the font lacks; the reader's may have them
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72)
        draw(figure)
        nobody = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nobody, transparent=True)
    return tidy(text.getvalue(), label, size, palette)


def tidy(svg: str, label: str, size: tuple[float, float], palette: Mapping[str, str] | None) -> str:
    """Without what only matplotlib needs; ids only where something refers to them."""
    _, _, body = svg.partition("</defs>")  # the first one holds a style sheet
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r' ?font-family: [^;"]*;', "", body).replace("xlink:href", "href")
    body = re.sub(r' transform="rotate\(-0 [^"]*"', "", body)
    body = re.sub(r'(?<= [dxy]=")[^"]*', lambda found: re.sub(r"\d+\.\d+", shortened, found[0]), body)
    body = re.sub(r"\s*\n\s*", " ", body)
    for colour, name in NAMES.items():
        body = body.replace(colour, palette[name] if palette else f"var(--{name})")
    view = f'viewBox="0 0 {size[0]:g} {size[1]:g}"'
    named = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    if palette is None:
        return f"<svg {view} {named}>{body.strip()}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]:g}" height="{size[1]:g}" {view} {named} '
        f'font-family="Helvetica Neue, Helvetica, Arial, sans-serif">'
        f"<style>text {{paint-order: stroke; stroke: {palette['surface']}; stroke-width: 3px; stroke-linejoin: round}}"
        f'</style><rect width="100%" height="100%" fill="{palette["surface"]}"/>{body.strip()}\n'
    )


def shortened(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


# Numbers in words


def short(value: float) -> str:
    """A length: 4,096."""
    return f"{value:,.0f}" if 1 <= value < 1e7 else f"{value:.3g}"


def digits(value: float) -> str:
    """Two or three."""
    if not 0.1 <= abs(value) < 1e6:
        return f"{value:.2g}"
    return f"{value:,.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"


def rounded(value: float, scale: float = 1.0, name: str = "") -> str:
    """No more digits than a round number has: 100 ms."""
    value /= scale
    return (f"{value:,.0f}" if 100 <= value < 1e6 else f"{value:.3g}") + (name and f" {name}")


Units = tuple[tuple[float, str], ...]
TIME: Units = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
SPACE: Units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def unit(value: float, units: Units) -> tuple[float, str]:
    """The largest that fits into the value."""
    return next((u for u in units if value >= u[0]), units[-1])
