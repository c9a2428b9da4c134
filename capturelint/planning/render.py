"""A plan as plain text: the buckets, the comparison, the gain of one more graph, the flags to paste.

Tables fit in 80 columns; lines that are meant to be pasted are never wrapped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from capturelint.planning.engines import Flags
from capturelint.planning.plan import BucketPlan, CurvePoint, Usage, affordable_graphs, gain
from capturelint.planning.units import show_bytes, show_count, show_share

WORTH_IT = 0.01
"""Below this gain over a default list the plan says that the default will do."""
MAX_CURVE_LINES = 14
MAX_WIDTH = 100

Row = Sequence[str]


def text_lines(
    plan: BucketPlan, compared: Sequence[tuple[str, Usage]], flags: Iterable[Flags], width: int | None
) -> Iterator[str]:
    """The whole report. ``width`` is the terminal's, ``None`` for a pipe, where nothing is wrapped."""
    yield from wrapped(summary(plan), width)
    for note in plan.histogram.notes:
        yield from wrapped(note, width, "  ")
    yield ""
    yield from wrapped(verdict(plan), width)
    yield from wrapped(eager_note(plan.usage), width)
    yield ""
    yield from bucket_table(plan)
    yield ""
    yield from comparison_table(plan, compared)
    yield ""
    for name, usage in compared:
        yield from wrapped(judgement(plan, name, usage), width, "", "  ")
    yield ""
    yield from curve_plot(plan, width)
    yield ""
    yield from flag_lines(flags)
    yield ""
    yield f"{show_count(len(plan.sizes), 'size')} to capture: {','.join(map(str, plan.sizes))}"


def wrapped(text: str, width: int | None, first: str = "", rest: str = "  ") -> list[str]:
    """Prose in lines of at most ``MAX_WIDTH`` columns."""
    if width is None:
        return [first + text]
    return textwrap.wrap(text, min(width, MAX_WIDTH), initial_indent=first, subsequent_indent=rest or first)


def summary(plan: BucketPlan) -> str:
    """What was observed."""
    histogram = plan.histogram
    spread = f"{histogram.sizes[0]:,} to {histogram.sizes[-1]:,}"
    distinct = show_count(len(histogram.sizes), "distinct size")
    return f"{histogram.source}: {show_count(histogram.steps, 'step')}, batch sizes {spread} ({distinct})"


def verdict(plan: BucketPlan) -> str:
    """The plan in one line."""
    padding = f"{show_share(plan.usage.padding_waste)} of the rows computed are padding"
    goal = f", {plan.usage.step_ns / 1e6:.3f} ms per step expected" if plan.usage.step_ns is not None else ""
    rounded = f"; {show_share(plan.rounded_rows / plan.usage.computed_rows)} by rounding" if plan.rounded_rows else ""
    multiple = f" to multiples of {plan.limits.multiple_of}" if plan.rounded_rows else ""
    budget = (
        ", as many as --memory allows"
        if affordable_graphs(plan.limits) == len(plan.sizes) < plan.limits.max_graphs
        else ""
    )
    return f"{show_count(len(plan.sizes), 'graph')}{budget}: {padding}{rounded}{multiple}{goal}"


def eager_note(usage: Usage) -> str:
    """What no graph runs."""
    if not usage.eager_steps:
        return f"every step runs in a graph, the largest in {usage.sizes[-1]:,}"
    return (
        f"batches above {usage.sizes[-1]:,} run eagerly: {show_count(usage.eager_steps, 'step')}, "
        f"{show_share(1 - usage.covered)} of all"
    )


def bucket_table(plan: BucketPlan) -> Iterator[str]:
    """One line a bucket."""
    total = sum(plan.usage.steps) + plan.usage.eager_steps
    memory = show_bytes(plan.limits.bytes_per_graph)
    header = ("size", "steps", "of all", "padding", "memory")
    rows = [
        (f"{size:,}", f"{steps:,}", show_share(steps / total), show_share(1 - live / (size * steps)), memory)
        for size, steps, live in zip(plan.sizes, plan.usage.steps, plan.usage.live_rows, strict=True)
    ]
    yield from table((header, *rows))


def comparison_table(plan: BucketPlan, compared: Sequence[tuple[str, Usage]]) -> Iterator[str]:
    """The plan beside lists that need no histogram."""
    header = ["captured", "graphs", "padding", "in graphs", "memory", "capture"]
    timed = plan.usage.step_ns is not None
    rows = [comparison_row(plan, "this plan", plan.usage, timed)]
    rows += [comparison_row(plan, name, usage, timed) for name, usage in compared]
    yield from table(([*header, "ms/step"] if timed else header, *rows), left=1)


def comparison_row(plan: BucketPlan, name: str, usage: Usage, timed: bool) -> list[str]:
    """One list of sizes; capture time is what one graph takes, times the graphs."""
    graphs = len(usage.sizes)
    capture_s = plan.limits.capture_s
    row = [name, str(graphs), show_share(usage.padding_waste), show_share(usage.covered)]
    row.append(show_bytes(plan.limits.memory_of(graphs)))
    row.append("-" if capture_s is None else f"{capture_s * graphs:.1f} s")
    if timed:
        row.append("-" if usage.step_ns is None else f"{usage.step_ns / 1e6:.3f}")
    return row


def judgement(plan: BucketPlan, name: str, usage: Usage) -> str:
    """The gain over one list, in words; under 1 % it says so."""
    share = gain(plan.usage, usage, plan.by_time)
    fewer = len(usage.sizes) - len(plan.sizes)
    graphs = f"{show_count(abs(fewer), 'graph')} {'fewer' if fewer > 0 else 'more'}" if fewer else "as many graphs"
    if share is None:
        return (
            f"{name}: runs {show_share(1 - usage.covered)} of the steps eagerly, so rows do not compare; {graphs} here"
        )
    what = "step time" if plan.by_time and usage.step_ns is not None else "rows computed"
    if not share:
        return f"{name}: the same {what}, with {graphs}"
    if abs(share) < WORTH_IT:
        return f"{name}: the gain in {what} is under 1 % ({share * 100:+.2f} %), with {graphs}"
    if share < 0:
        return f"{name}: no gain, {show_share(-share)} more {what}, but {graphs}"
    return f"{name}: this plan saves {show_share(share)} of the {what}, with {graphs}"


def curve_plot(plan: BucketPlan, width: int | None) -> Iterator[str]:
    """Bars of the cost by number of graphs, and what the next graph saves."""
    points = thin(plan.curve, len(plan.sizes))
    gains = {
        before.graphs: before.cost - after.cost
        for before, after in zip(plan.curve, plan.curve[1:], strict=False)
        if after.graphs == before.graphs + 1
    }
    unit = "ms/step" if plan.by_time else "padding"
    room = max(10, min(width or MAX_WIDTH, MAX_WIDTH) - 36)
    most = max(point.cost for point in plan.curve)
    rows = [("graphs", unit, "one more")]
    bars = [""]
    for point in points:
        saved = gains.get(point.graphs)
        mark = "*" if point.graphs == len(plan.sizes) else ""
        rows.append(
            (f"{mark}{point.graphs}", show_cost(plan, point.cost), "" if saved is None else show_cost(plan, -saved))
        )
        bars.append("#" * round(room * point.cost / most) if most else "")
    for line, bar in zip(table(rows), bars, strict=True):
        yield f"{line}  {bar}".rstrip()


def show_cost(plan: BucketPlan, cost: float) -> str:
    """A cost on the curve in the plan's unit."""
    return f"{cost / 1e6:.3f}" if plan.by_time else f"{cost * 100:.2f} %"


def thin(curve: Sequence[CurvePoint], chosen: int) -> list[CurvePoint]:
    """Few enough points for a plot, the chosen number and its neighbours among them."""
    wanted = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}
    near = {chosen - 1, chosen, chosen + 1}
    kept = [point for point in curve if point.graphs in wanted | near]
    far = [point for point in kept if point.graphs not in near]
    step = -(-len(far) // (MAX_CURVE_LINES - len(near))) or 1
    return [point for point in kept if point.graphs in near or far.index(point) % step == 0]


def flag_lines(flags: Iterable[Flags]) -> Iterator[str]:
    """What to paste, by engine and version, unwrapped."""
    for flag in flags:
        yield f"{flag.engine} {flag.versions}"
        yield from (f"  {line}" for line in flag.text.splitlines())


def table(rows: Sequence[Row], left: int = 0) -> Iterator[str]:
    """Rows with columns aligned to the right, the first ``left`` of them to the left."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
