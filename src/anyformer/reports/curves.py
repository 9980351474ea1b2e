"""Figures of a study: the same panels one by one within a page, or together as a picture that stands alone."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from anyformer.reports.figures import (
    INK,
    LIGHT,
    LINES,
    Series,
    Style,
    draw_costs,
    draw_ratios,
    drawn,
    frame,
    room,
    scale_ratios,
    short,
    swatch,
)

DASHED = (0, (4, 2))
STYLES = {
    "softmax": Style(INK, "", "-", 2.2),
    "linear": Style(LINES[0], "o", "-", 1.7),
    "performer:positive": Style(LINES[1], "s", "-", 1.7),
    "performer:relu": Style(LINES[2], "^", "-", 1.7),
    "linear, naive": Style(LINES[3], "D", "-", 1.7),
    "softmax, nothing cached": Style(INK, "", DASHED, 2.2),
    "softmax, document 002": Style(INK, "s", DASHED, 1.5),
    "linear, document 002": Style(LINES[4], "D", DASHED, 1.5),
    "linear, one layer": Style(LINES[2], "^", "-", 1.7),
    "linear, whole model": Style(LINES[0], "o", "-", 1.7),
    "the paper": Style(LINES[3], "o", "", 1.7),
}
REGRESSION, POINTS = ", regression", ", points"  # after a name: its style without the markers, or with nothing else
WIDE, TALL = 440, 268  # a panel of a picture that stands alone

Draw = Callable[[Any], None]  # into axes
Curve = Sequence[tuple[float, float, float]]  # step, mean and standard deviation


class Panel(NamedTuple):
    title: str
    unit: str
    said: str  # for those who do not see it
    draw: Draw

    @property
    def label(self) -> str:
        return f"{self.title}: {self.unit}. {self.said}".rstrip()


class Picture(NamedTuple):
    name: str
    title: str
    panels: list[Panel]
    legend: Sequence[str]

    @property
    def label(self) -> str:
        return " ".join([f"{self.title}.", *(panel.label for panel in self.panels)])


def style(name: str) -> Style:
    """Every name that is drawn has one."""
    if name.endswith(REGRESSION):
        return STYLES[name.removesuffix(REGRESSION)]._replace(marker="")
    return STYLES[name.removesuffix(POINTS)]._replace(dash="") if name.endswith(POINTS) else STYLES[name]


def panels(picture: Picture) -> list[dict[str, str]]:
    """Parts of a page."""
    return [
        {"title": one.title, "unit": one.unit, "svg": drawn(inside(one), f"{picture.name} {n}", one.label)}
        for n, one in enumerate(picture.panels)
    ]


def inside(panel: Panel) -> Draw:
    return lambda figure: panel.draw(room(figure))


def swatches(picture: Picture) -> list[tuple[str, str]]:
    return [(name, swatch(STYLES[name])) for name in picture.legend]


def sheet(picture: Picture) -> str:
    """All panels under one title and legend."""
    columns = 1 if len(picture.panels) == 1 else 2
    width = WIDE * 2 if columns == 2 else 600
    lines = legend_lines(picture.legend, width - 28)
    top = 48 + 20 * len(lines)
    height = top + TALL * ceil(len(picture.panels) / columns)
    wide = width / columns

    def draw(figure: Any) -> None:
        figure.text(14 / width, 1 - 28 / height, picture.title, fontsize=15, color=INK, weight="bold", parse_math=False)
        for n, line in enumerate(lines):
            for name, left in line:
                y = 1 - (50 + 20 * n) / height
                key(figure, STYLES[name], left / width, y, 28 / width)
                figure.text((left + 36) / width, y, name, fontsize=11, color=INK, va="center", parse_math=False)
        for n, panel in enumerate(picture.panels):
            row, column = divmod(n, columns)
            bottom = height - top - TALL * (row + 1) + 38
            box = (column * wide + 60) / width, bottom / height, (wide - 84) / width, (TALL - 74) / height
            ax = figure.add_axes(box)
            ax.set_title(f"{panel.title}: {panel.unit}", fontsize=11, color=INK, loc="left", pad=10, parse_math=False)
            panel.draw(ax)

    return drawn(draw, picture.name, picture.label, size=(width, height), palette=LIGHT)


def legend_lines(names: Sequence[str], width: float) -> list[list[tuple[str, float]]]:
    """Each name and where it begins, in as many lines as it takes."""
    lines: list[list[tuple[str, float]]] = [[]]
    left = 14.0
    for name in names:
        wide = 60 + 6.2 * len(name)
        if lines[-1] and left + wide > width:
            left, lines = 14.0, [*lines, []]
        lines[-1].append((name, left))
        left += wide
    return lines


def key(figure: Any, style: Style, left: float, y: float, wide: float) -> None:
    from matplotlib.lines import Line2D

    line = Line2D([left, left + wide / 2, left + wide], [y] * 3, color=style.colour, lw=style.width, ls=style.dash)
    line.set(marker=style.marker, markevery=[1], ms=5.5, mec=style.colour)
    figure.add_artist(line)


# What a panel shows


def losses(curves: Mapping[str, Curve], low: float, high: float, mark: float | None = None) -> Draw:
    """Loss against step, with the standard deviation as a band; `mark` is a step to be pointed at."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    def draw(ax: Any) -> None:
        ax.set_yscale("log")
        for name, curve in curves.items():
            steps, means, deviations = zip(*curve, strict=True)
            bounds = [(max(low, m - s), max(low, m + s)) for m, s in zip(means, deviations, strict=True)]
            of = style(name)
            ax.fill_between(steps, *zip(*bounds, strict=True), color=of.colour, alpha=0.16, lw=0)
            ax.plot(steps, means, color=of.colour, lw=0.8 * of.width, ls=of.dash, solid_capstyle="round")
        ax.set_xlim(0, 1.02 * max(step for curve in curves.values() for step, _, _ in curve))
        ax.set_ylim(low, high)
        ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda step, _: short(step) if step else "0"))
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 50 else (1.0, 2.0, 5.0), numticks=6))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))
        frame(ax, "steps")
        if mark is not None:
            ax.axvline(mark, color=INK, lw=0.8, ls=(0, (1, 2)))

    return draw


def reach(curves: Sequence[Mapping[str, Curve]]) -> tuple[float, float]:
    """From where to where the losses of several panels go, so that all have one scale; at least a factor of 5."""
    means = [mean for panel in curves for curve in panel.values() for _, mean, _ in curve]
    high = 1.3 * max(means)
    return min(min(means) / 1.3, high / 5), high


def ratios(found: Sequence[Series]) -> Draw:
    """How many times as fast as their baselines they are."""
    of = {s.mechanism: style(s.mechanism) for s in found}
    return lambda ax: scale_ratios(ax, *draw_ratios(ax, found, of))


def costs(found: Sequence[Series]) -> Draw:
    """Seconds or bytes."""
    of = {name: style(name) for s in found for name in (s.mechanism, s.against)}
    return lambda ax: draw_costs(ax, found, of)
