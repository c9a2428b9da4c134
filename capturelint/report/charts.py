"""Figures of a verified step -> SVG pictures that follow the page's colours.

Drawn by matplotlib in colours that stand for words (``#010101`` for ink), which become CSS variables afterwards: one
picture serves light, dark and paper. Every mark carries an id (``latency-eager-1``), so a browser test can find the
data, and every picture is also told in words.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from capturelint.errors import UsageError
from capturelint.runtime.timeline import Operations, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN = 5.0
COLOURS = {
    "ink": "#010101",
    "dim": "#020202",
    "line": "#030303",
    "paper": "#040404",
    "eager": "#050505",
    "captured": "#060606",
    "compiled": "#070707",
    "both": "#080808",
    "floor": "#090909",
    "bad": "#0a0a0a",
}
SERIES_COLOURS = ("captured", "compiled", "both", "eager", "floor", "bad")
DASHES = ("-", "--", ":", "-.")
MAX_FUNCTIONS, MAX_NAME = 8, 22
MAX_COLUMNS = 32
"""Live batch sizes shown in the padding map; beyond that, every second, third, ... one."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart: its heading, the SVG, all that it shows in words, and the words that stand below it."""

    name: str
    title: str
    svg: str
    said: str
    caption: str


@dataclass(frozen=True, slots=True)
class Timed:
    """Median and tail of one kind of step, in milliseconds. ``kind`` is a word of ``COLOURS``."""

    label: str
    kind: str
    p50: float
    p99: float


def latency(buckets: Mapping[int, Sequence[Timed]], floor_ms: float | None) -> Picture:
    """A group of bars a batch size; the thin line ends at p99, the dashed one is the floor."""
    rows = sum(map(len, buckets.values())) + 0.7 * len(buckets)
    longest = max(timed.p99 for group in buckets.values() for timed in group)

    def draw(axes: Axes) -> None:
        at, ticks = 0.0, []
        for size, group in buckets.items():
            ticks.append((at + (len(group) - 1) / 2, f"batch {size}"))
            for timed in group:
                bars = axes.barh(at, timed.p50, 0.8, color=COLOURS[timed.kind])
                bars[0].set_gid(f"latency-{timed.kind}-{size}")
                axes.plot([timed.p50, timed.p99], [at, at], color=COLOURS["dim"], linewidth=1.2)
                text = f"{timed.label} {timed.p50:.2f}, p99 {timed.p99:.2f}"
                inside = timed.p50 > 0.6 * longest
                where = timed.p50 if inside else timed.p99
                axes.annotate(
                    text,
                    (where, at),
                    (-4 if inside else 4, 0),
                    textcoords="offset points",
                    va="center",
                    ha="right" if inside else "left",
                    color=COLOURS["paper" if inside else "ink"],
                )
                at += 1
            at += 0.7
        if floor_ms is not None:
            axes.axvline(floor_ms, color=COLOURS["floor"], linestyle="--", linewidth=1.5, gid="latency-floor")
        axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.03)
        axes.set_xlabel("milliseconds a step")

    said = "; ".join(
        f"batch {size}: " + ", ".join(f"{t.label} {t.p50:.2f} ms (p99 {t.p99:.2f})" for t in group)
        for size, group in buckets.items()
    )
    below = f"; the dashed line is the floor, {floor_words(floor_ms)}" if floor_ms is not None else ""
    caption = f"bars are medians, thin lines end at the 99th percentile{below}"
    return picture("latency", "Milliseconds of one step", 0.7 + 0.235 * rows, draw, f"{said}{below}", caption)


def floor_words(ms: float) -> str:
    """``0.29 ms``; a tiny step's floor is no 0."""
    return f"{ms:.2f} ms" if ms >= 0.01 else "< 0.01 ms"


def memory(pools: Mapping[int, int]) -> Picture:
    """A bar a batch size: what its graph adds to the shared pool."""

    def draw(axes: Axes) -> None:
        longest = max(max(pools.values()) / 1e6, 1e-6)
        for row, (size, nbytes) in enumerate(pools.items()):
            bars = axes.barh(row, nbytes / 1e6, 0.7, color=COLOURS["captured"])
            bars[0].set_gid(f"memory-{size}")
            inside = nbytes / 1e6 > 0.7 * longest
            axes.annotate(
                f"{nbytes / 1e6:.1f} MB",
                (nbytes / 1e6, row),
                (-4 if inside else 4, 0),
                textcoords="offset points",
                va="center",
                ha="right" if inside else "left",
                color=COLOURS["paper" if inside else "ink"],
            )
        axes.set_yticks(range(len(pools)), [f"batch {size}" for size in pools])
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.03)
        axes.set_xlabel("megabytes added to the graphs' shared pool")

    said = "; ".join(f"batch {size}: {nbytes / 1e6:.1f} MB" for size, nbytes in pools.items())
    caption = f"{sum(pools.values()) / 1e6:.1f} MB in all; the graphs share one pool"
    return picture("memory", "Memory of the graphs", 0.75 + 0.26 * len(pools), draw, said, caption)


def errors(buckets: Mapping[int, tuple[int, Sequence[float]]], tolerance: float) -> Picture:
    """A line a batch size: the error of each replayed step; above the dashed tolerance replay is wrong."""
    from matplotlib.ticker import MaxNLocator

    finite = [error for _, found in buckets.values() for error in found if math.isfinite(error)]
    top = max([tolerance, *finite]) * 4

    def draw(axes: Axes) -> None:
        for row, (size, (first, found)) in enumerate(buckets.items()):
            axes.plot(
                range(first, first + len(found)),
                [min(error, top) for error in found],
                DASHES[row % len(DASHES)],
                color=COLOURS[SERIES_COLOURS[row % len(SERIES_COLOURS)]],
                marker="o",
                markersize=4,
                linewidth=1.5,
                label=f"batch {size}",
                gid=f"errors-{size}",
            )
        axes.axhline(tolerance, color=COLOURS["bad"], linestyle="--", linewidth=1.2, gid="errors-tolerance")
        axes.annotate(
            f"tolerance {tolerance:.2g}",
            (1, tolerance),
            (-2, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            color=COLOURS["bad"],
        )
        axes.set_yscale("symlog", linthresh=tolerance / 10)
        axes.set_ylim(-tolerance / 40, top * 1.5)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(
            lambda value, position: f"{value:g}" if value >= 1e-3 or not value else f"{value:.0e}"
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("decode step")
        axes.set_ylabel("error, of the largest value")
        rows = math.ceil(len(buckets) / 4)
        axes.legend(
            ncols=4, loc="lower left", bbox_to_anchor=(-0.02, 1.0), frameon=False, handlelength=1.8,
            columnspacing=1.0, labelcolor=COLOURS["ink"], borderaxespad=0.1 * rows,
        )  # fmt: skip

    said = "; ".join(
        f"batch {size}: largest {max(found):.2g} over {len(found)} steps from step {first}"
        for size, (first, found) in buckets.items()
    )
    wrong = [size for size, (_, found) in buckets.items() if not all(error <= tolerance for error in found)]
    caption = f"above the dashed line at batch {', '.join(map(str, wrong))}" if wrong else "all below the tolerance"
    return picture("errors", "Error of each replayed step", 2.5, draw, f"{said}; tolerance {tolerance:.2g}", caption)


def padding(sizes: Sequence[int]) -> Picture:
    """Which share of a bucket's rows is padding, for each live batch; the bucket that is used is framed."""
    from matplotlib.patches import Rectangle

    largest = max(sizes)
    stride = math.ceil(largest / MAX_COLUMNS)
    live = list(range(1, largest + 1, stride))
    ordered = sorted(sizes)
    chosen = [min(size for size in ordered if size >= rows) for rows in live]

    def draw(axes: Axes) -> None:
        for column, (rows, used) in enumerate(zip(live, chosen, strict=True)):
            for line, size in enumerate(ordered):
                if size < rows:
                    continue
                share = 1 - rows / size
                corner = (column - 0.46, line - 0.46)
                axes.add_patch(
                    Rectangle(corner, 0.92, 0.92, facecolor=COLOURS["bad"], alpha=share, gid=f"padding-{rows}-{size}")
                )
                axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=COLOURS["line"], linewidth=0.6))
                if size == used:
                    axes.add_patch(
                        Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=COLOURS["captured"], linewidth=1.8)
                    )
        every = math.ceil(len(live) / 12)
        axes.set_xticks(range(0, len(live), every), [str(rows) for rows in live[::every]])
        axes.set_yticks(range(len(ordered)), [str(size) for size in ordered])
        axes.set_xlim(-0.6, len(live) - 0.4)
        axes.set_ylim(-0.6, len(ordered) - 0.4)
        axes.set_xlabel("live batch")
        axes.set_ylabel("bucket")
        axes.grid(visible=False)

    exact = [(rows, min(size for size in ordered if size >= rows)) for rows in range(1, largest + 1)]
    worst, used = max(exact, key=lambda pair: 1 - pair[0] / pair[1])
    computed, wanted = sum(size for _, size in exact), sum(rows for rows, _ in exact)
    said = (
        f"a live batch runs in the next larger bucket; the worst is {worst} in {used}, {1 - worst / used:.0%} padding; "
        f"were all sizes up to {largest} equally frequent, {1 - wanted / computed:.0%} of the rows would be padding"
        if worst < used
        else f"every live batch up to {largest} has a bucket of its size, so nothing is padded"
    )
    return picture("padding", "Padding by live batch", 0.85 + 0.2 * len(ordered), draw, said)


def timeline(lines: Mapping[str, Timeline], medians: Mapping[str, float], bucket: int) -> Picture:
    """One step of each kind on one axis: as high as the share of the time in which the GPU works.

    ``medians`` are the milliseconds of untraced steps.
    """
    longest = max(line.us for line in lines.values())

    def draw(axes: Axes) -> None:
        for row, (name, line) in enumerate(lines.items()):
            edges = [line.us / 1000 * index / len(line.outside) for index in range(len(line.outside) + 1)]
            below = [row + 0.4 - 0.8 * share for share in line.in_graphs]
            above = [low - 0.8 * share for low, share in zip(below, line.outside, strict=True)]
            outside = "eager" if name == "eager" else "bad"
            for kind, word, low, high in (
                ("captured", "in-graphs", [row + 0.4] * len(below), below),
                (outside, "outside", below, above),
            ):
                axes.fill_between(
                    edges, [*low, low[-1]], [*high, high[-1]], step="post", color=COLOURS[kind], linewidth=0,
                    gid=f"timeline-{name}-{word}",
                )  # fmt: skip
        axes.hlines([row + 0.4 for row in range(len(lines))], 0, longest / 1000, color=COLOURS["line"], linewidth=0.6)
        axes.set_yticks(range(len(lines)), list(lines))
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.set_xlim(0, longest / 1000)
        axes.set_xlabel("milliseconds since the first kernel of the step")

    said = "; ".join(f"{name}: {in_time(line)}" for name, line in lines.items())
    works = ", ".join(f"{sum(line.busy) / 1000:.2f} of {medians[name]:.2f} ms {name}" for name, line in lines.items())
    caption = (
        f"as high as the share of the time in which the GPU works, at batch {bucket}: {works}; blue is inside graphs; "
        "drawn as traced, which takes longer"
    )
    return picture("timeline", "Timeline of one step", 0.6 + 0.42 * len(lines), draw, said, caption)


def in_time(line: Timeline) -> str:
    """``5.10 ms, kernels run for 4.90 ms in graphs and 0.05 ms outside, nothing for 0.15 ms``."""
    inside, outside = (us / 1000 for us in line.busy)
    nothing = max(0.0, line.us / 1000 - inside - outside)
    return (
        f"{line.us / 1000:.2f} ms, {line.kernels} kernels and copies run for {inside:.2f} ms in graphs and "
        f"{outside:.2f} ms outside, nothing for {nothing:.2f} ms"
    )


def order(steps: Sequence[Operations], bucket: int) -> Picture:
    """The operations of one step in order, a row a function of the target; without any time."""
    functions = list(dict.fromkeys(run.function for run in steps))
    shown = functions if len(functions) <= MAX_FUNCTIONS else functions[: MAX_FUNCTIONS - 1]
    names = shown if shown == functions else [*shown, "others"]
    rows = [min(functions.index(run.function), len(names) - 1) for run in steps]
    ends = list(accumulate(run.count for run in steps))
    placed = [(end - run.count, run, row) for end, run, row in zip(ends, steps, rows, strict=True)]

    def draw(axes: Axes) -> None:
        for kind, word, in_graph in (("eager", "outside", False), ("captured", "in-graphs", True)):
            for row in range(len(names)):
                runs = [(start, run.count) for start, run, at in placed if at == row and run.in_graph is in_graph]
                if runs:
                    axes.broken_barh(
                        runs, (row - 0.35, 0.7), facecolors=COLOURS[kind], linewidth=0, gid=f"order-{word}-{row}"
                    )
        axes.set_yticks(range(len(names)), [shortened(name) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, ends[-1])
        axes.set_xlabel("operation")

    inside = sum(run.count for run in steps if run.in_graph)
    counts = Counter[str]()
    for _, run, row in placed:
        counts[names[row]] += run.count
    where = f"{inside} operations inside the graph and {ends[-1] - inside} before it, which copy the inputs"
    said = f"{where}; {', '.join(f'{name} {count}' for name, count in counts.items())}"
    caption = f"{where}, at batch {bucket}; in order and without times, which need a GPU"
    return picture("order", "Operations of one step", 0.6 + 0.24 * len(names), draw, said, caption)


def shortened(name: str) -> str:
    """A name that leaves room for the picture."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3]}..."


def picture(
    name: str, title: str, height: float, draw: Callable[[Axes], None], said: str, caption: str = ""
) -> Picture:
    """Draw on one pair of axes and take the SVG. Raises ``UsageError`` without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("the HTML report needs matplotlib; pip install 'capturelint[report]'") from error
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 10,
        "text.parse_math": False,
        "axes.edgecolor": COLOURS["line"],
        "axes.labelcolor": COLOURS["dim"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "x",
        "grid.color": COLOURS["line"],
        "grid.linewidth": 0.6,
        "text.color": COLOURS["ink"],
        "xtick.color": COLOURS["dim"],
        "ytick.color": COLOURS["line"],
        "ytick.labelcolor": COLOURS["ink"],
    }
    with rc_context(settings):  # type: ignore[arg-type,unused-ignore]  # stubs list every key
        figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
        draw(figure.subplots())
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Picture(name, title, themed(written.getvalue(), name), said, caption or said)


def themed(svg: str, name: str) -> str:
    """The picture for a page: its colours the page's, its fonts the page's, its ids no other picture's."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    for word, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{word})")
    svg = re.sub(r"font(?:-family)?: (?P<size>\d+px )?[^;\"]*", lambda found: f"font-size: {found['size']}"
                 if found["size"] else "font-family: inherit", svg)  # fmt: skip
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    own = re.compile(rf'id="(?!{name}-)')
    svg = own.sub(f'id="{name}-', svg)
    svg = re.sub(rf"(?P<before>url\(#|href=\"#)(?!{name}-)", rf"\g<before>{name}-", svg)
    return svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1).strip()
