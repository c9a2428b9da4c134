"""The curve of a plan as SVG: cost by number of graphs, the chosen number marked. No script, no external font."""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from capturelint.planning.plan import BucketPlan, CurvePoint

NAMESPACE = "http://www.w3.org/2000/svg"
WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 56, 52
STYLE = (
    "text { font: 12px system-ui, sans-serif; fill: #333 } .title { font-size: 14px; font-weight: 600 } "
    ".grid { stroke: #ddd } .curve { fill: none; stroke: #2b6cb0; stroke-width: 2 } "
    ".dot { fill: #2b6cb0 } .chosen { fill: #c05621 }"
)


def draw_curve(plan: BucketPlan) -> str:
    """The SVG document."""
    return "\n".join(
        [
            f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            *title(plan),
            *axes(plan),
            *curve(plan),
            "</svg>\n",
        ]
    )


def title(plan: BucketPlan) -> Iterator[str]:
    """What is plotted, and of what."""
    what = "expected step time" if plan.by_time else "padding, share of rows computed"
    yield f'<text class="title" x="{LEFT}" y="22">{what}, by number of graphs</text>'
    source = f"{plan.histogram.source}: {plan.histogram.steps:,} steps; chosen: {len(plan.sizes)} graphs"
    yield f'<text x="{LEFT}" y="40">{escape(source)}</text>'


def axes(plan: BucketPlan) -> Iterator[str]:
    """Grid lines with their values, and the numbers of graphs below."""
    top, step = highest(plan), tick_step(plan)
    for part in range(round(top / step) + 1):
        value = step * part
        y = height_of(value, top)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label(plan, value))}</text>'
    last = plan.curve[-1].graphs
    for graphs in sorted({1, *(round(last * part / 4) or 1 for part in range(1, 5))}):
        x = across(graphs, last)
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{graphs}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">graphs</text>'


def curve(plan: BucketPlan) -> Iterator[str]:
    """The line, a dot for each optimum, and the chosen one in another colour."""
    top, last = highest(plan), plan.curve[-1].graphs
    dots = [(across(point.graphs, last), height_of(point.cost, top), point) for point in plan.curve]
    yield f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _ in dots)}"/>'
    for x, y, point in dots:
        chosen = point.graphs == len(plan.sizes)
        text = escape(tooltip(plan, point))
        yield f'<circle class="{"chosen" if chosen else "dot"}" cx="{x:.1f}" cy="{y:.1f}" r="{5 if chosen else 2.5}">'
        yield f"<title>{text}</title></circle>"


def tooltip(plan: BucketPlan, point: CurvePoint) -> str:
    """What a viewer shows for a dot."""
    return f"{point.graphs} graphs: {label(plan, point.cost)}"


def label(plan: BucketPlan, cost: float) -> str:
    """A cost with its unit."""
    return f"{cost / 1e6:.4g} ms" if plan.by_time else f"{cost * 100:.4g} %"


def highest(plan: BucketPlan) -> float:
    """The top of the vertical axis, which starts at 0: the first grid line above the curve."""
    step = tick_step(plan)
    return step * math.ceil(most(plan) / step)


def tick_step(plan: BucketPlan) -> float:
    """A round distance between grid lines, of which there are about five."""
    magnitude = 10.0 ** math.floor(math.log10(most(plan) / 4))
    return next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= most(plan) / 4)


def most(plan: BucketPlan) -> float:
    """The largest cost on the curve."""
    return max(point.cost for point in plan.curve) or 1.0


def height_of(value: float, top: float) -> float:
    """The y coordinate of a cost."""
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def across(graphs: int, last: int) -> float:
    """The x coordinate of a number of graphs."""
    return LEFT + (WIDTH - LEFT - RIGHT) * (graphs - 1) / max(1, last - 1)
