"""``capturelint plan``: which batch sizes to capture, from how often each was run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import Enum
from math import lcm
from pathlib import Path
from typing import Annotated

import typer

from capturelint import __version__
from capturelint.cli.output import write
from capturelint.cli.terminal import width_of
from capturelint.errors import HistogramError
from capturelint.planning.arrivals import simulate
from capturelint.planning.engines import ENGINES, DefaultList, Request, default_lists, flags, parse_engine
from capturelint.planning.histogram import Histogram, read_histogram
from capturelint.planning.measured import Measured, read_measured
from capturelint.planning.plan import BucketPlan, Limits, Usage, choose, speculate, use
from capturelint.planning.record import to_json
from capturelint.planning.render import text_lines
from capturelint.planning.svg import draw_curve
from capturelint.planning.units import parse_bytes

STDIN = "-"
DEFAULT_GRAPHS = 16


class PlanFormat(Enum):
    """How a plan can be written."""

    TEXT = "text"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("plan", epilog="Example: capturelint plan batches.csv --max-graphs 12 --engine vllm==0.33")(command)


def command(
    histogram: Annotated[
        str | None,
        typer.Argument(
            metavar="HISTOGRAM",
            help="CSV `batch_size,count`, JSON, a vLLM or SGLang log, or a Prometheus dump; - is stdin.",
        ),
    ] = None,
    max_graphs: Annotated[int, typer.Option(metavar="N", help="Capture at most N sizes.")] = DEFAULT_GRAPHS,
    max_batch: Annotated[
        int | None, typer.Option(metavar="N", help="Cover batches up to N; larger ones run eagerly.")
    ] = None,
    multiple_of: Annotated[int, typer.Option(metavar="N", help="Only sizes that are multiples of N.")] = 1,
    speculative_tokens: Annotated[
        int, typer.Option(metavar="K", help="The histogram counts requests of 1 + K tokens each.")
    ] = 0,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory for all graphs, as in 2GiB.")] = None,
    bytes_per_graph: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of one graph, as in 36MB.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON of `capturelint verify`: step times, capture time, the pool's memory."),
    ] = None,
    poisson: Annotated[
        float | None, typer.Option(metavar="RATE", help="Simulate RATE requests a second instead of a histogram.")
    ] = None,
    service_ms: Annotated[
        float | None, typer.Option("--service-ms", metavar="MS", help="Mean time that a simulated request runs.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the simulation.")] = 0,
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[==VERSION]", help=f"Compare with and write flags for {', '.join(ENGINES)}."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the curve of gains as SVG.")] = None,
    form: Annotated[PlanFormat, typer.Option("--format", help="How to write the plan.")] = PlanFormat.TEXT,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan to this file.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The sizes only.")] = False,
) -> None:
    """Choose the batch sizes to capture from those that are run.

    Exit codes: 0 a plan was made, 2 usage or a histogram that cannot be read.
    """
    for value, least, option in (
        (max_graphs, 1, "--max-graphs"),
        (max_batch, 1, "--max-batch"),
        (multiple_of, 1, "--multiple-of"),
        (speculative_tokens, 0, "--speculative-tokens"),
    ):
        if value is not None and value < least:
            raise HistogramError(f"{option} {value} is too small; it must be at least {least}")
    engines = [parse_engine(text) for text in engine or ENGINES]
    times = read_measured(read(str(measured)), str(measured)) if measured else None
    observed = read_or_simulate(histogram, poisson, service_ms, max_batch, seed)
    query_length = 1 + speculative_tokens
    if speculative_tokens:
        observed = speculate(observed, speculative_tokens)
        multiple_of = lcm(multiple_of, query_length)
    limits = Limits(
        max_graphs=max_graphs,
        max_batch=max_batch * query_length if max_batch else None,
        multiple_of=multiple_of,
        memory=parse_bytes(memory, "--memory") if memory else None,
        bytes_per_graph=graph_bytes(bytes_per_graph, times),
        pool_nbytes=times.pool.nbytes - times.pool.growth_nbytes if times and times.pool else 0,
        capture_s=times.capture_s if times else None,
    )
    plan = choose(observed, limits, times)
    request = Request(-(-plan.sizes[-1] // query_length), query_length)
    compared = compare(plan, default_lists(engines, request), times)
    pasted = flags(engines, plan.sizes, query_length)
    if plot:
        write(draw_curve(plan), plot, "--plot")
    if form is PlanFormat.JSON:
        text = to_json(plan, compared, pasted, __version__) + "\n"
    elif quiet:
        text = " ".join(map(str, plan.sizes)) + "\n"
    else:
        text = "\n".join(text_lines(plan, compared, pasted, None if output else width_of(sys.stdout))) + "\n"
    write(text, output)


def read_or_simulate(
    histogram: str | None, rate: float | None, service_ms: float | None, max_batch: int | None, seed: int
) -> Histogram:
    """The histogram that the command line names. Raises ``HistogramError``."""
    if rate is None:
        if histogram is None:
            raise HistogramError(
                "no histogram: name a file, or simulate with --poisson RATE --service-ms MS --max-batch N"
            )
        if service_ms is not None:
            raise HistogramError("--service-ms needs --poisson")
        return read_histogram(read(histogram), "stdin" if histogram == STDIN else histogram)
    if histogram is not None:
        raise HistogramError(f"--poisson simulates a histogram, so {histogram} cannot be read too")
    if service_ms is None or max_batch is None:
        raise HistogramError("--poisson needs --service-ms MS and --max-batch N")
    return simulate(rate, service_ms, max_batch, seed)


def read(name: str) -> str:
    """A file's text, or stdin's. Raises ``HistogramError``."""
    try:
        content = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as error:
        raise HistogramError(f"{name}: {error.strerror}") from error
    # A log may hold any bytes; a histogram that does is rejected by what the replacement character is not.
    return content.decode("utf-8", "replace")


def graph_bytes(text: str | None, measured: Measured | None) -> int | None:
    """What one graph takes: as given, and what it adds to the pool that was measured."""
    growth = measured.pool.growth_nbytes if measured and measured.pool else None
    return growth if text is None else parse_bytes(text, "--bytes-per-graph") + (growth or 0)


def compare(plan: BucketPlan, lists: Sequence[DefaultList], measured: Measured | None) -> list[tuple[str, Usage]]:
    """Each list's usage of the plan's histogram."""
    return [(one.name, use(plan.histogram, one.sizes, measured, one.pads)) for one in lists]
