"""``capturelint verify``: run, capture, replay and compare a decode step."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated, TypeVar

import typer

from capturelint.catalog import find_rules
from capturelint.cli.output import write
from capturelint.cli.terminal import colour_and_width, shows_progress
from capturelint.cli.waiting import Waiting
from capturelint.compiler.findings import compile_findings, summary
from capturelint.compiler.report import CompileReport
from capturelint.errors import UsageError
from capturelint.finding import Finding
from capturelint.report.model import Format
from capturelint.runtime.blame import Suspects
from capturelint.runtime.compiled import verify_compiled
from capturelint.runtime.protocol import Plan, Progress, Stage
from capturelint.runtime.supervise import spare_gib
from capturelint.runtime.suspects import read_suspects
from capturelint.runtime.verify import Limits, VerifyReport, verify
from capturelint.vocabulary import Verdict

DEFAULT_STEPS = 16
WARM_UP = 3
Amount = TypeVar("Amount", int, float)
RUNS = (Verdict.OK, Verdict.CAPTURE_ERROR, Verdict.REPLAY_DIFFERS)
"""Verdicts of a step that runs at a batch size, so that it can be compiled there."""
EXIT_CODES = {"safe": 0, "unsafe": 1, "fault": 2}
INTERRUPTED = 130
Tell = Callable[[Progress], None]


class Device(Enum):
    """Where the step runs."""

    CUDA = "cuda"
    EMULATED = "emulated"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("verify", epilog="Example: capturelint verify model.py --buckets 1,2,4,8")(command)


def command(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A .py file with build(device), or hf:DIRECTORY, or hf:MODEL_TYPE.")
    ],
    buckets: Annotated[str, typer.Option(metavar="LIST", help="Batch sizes, separated by commas.")] = "1,2,4,8",
    device: Annotated[Device | None, typer.Option(help="Default: cuda where there is one.")] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help=f"Decode steps, warm-up included; default {DEFAULT_STEPS}.")
    ] = None,
    max_length: Annotated[int, typer.Option(metavar="N", help="Positions of a cache that the tool makes.")] = 256,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            show_default=False,
            help="Time without any progress after which a bucket is given up; default 300.",
        ),
    ] = 300.0,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            metavar="GIB", help="Memory that the target may take; default: nine tenths of what the host has free."
        ),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(metavar="X", help="Allowed error, relative to the largest eager value.")
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="A tiny random configuration, for hf:MODEL_TYPE.")] = False,
    driver: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run the file's own capture code, NAME(device).")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="[FILE:]NAME", help="The eager counterpart of --driver.")
    ] = None,
    suspects: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON of `capturelint check`; what is confirmed is proven.")
    ] = None,
    select: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Report only this rule; repeatable.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Not this rule; repeatable.")] = None,
    compile_step: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            show_default=False,
            help="Also compile the step with reduce-overhead and tell what it loses.",
        ),
    ] = False,
    min_coverage: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", help="With --compile: kernels that must run inside graphs, of all kernels."),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to write the report.")] = Format.TEXT,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report to this file.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report as one HTML file.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Findings only, no progress.")] = False,
) -> None:
    """Capture and replay a decode step, and compare it with eager.

    Exit codes: 0 safe, 1 unsafe, 2 the target or the machine is at fault.
    """
    if compile_step and driver:
        raise UsageError("--compile compiles the target's step; a --driver has none")
    if min_coverage is not None and not compile_step:
        raise UsageError("--min-coverage needs --compile")
    if reference is not None and driver is None:
        raise UsageError("--reference is the eager counterpart of a --driver, and none is named")
    if reference is not None and ":" in reference:
        existing(reference.rpartition(":")[0])
    chosen, ignored = find_rules(select or ()), find_rules(ignore or ())

    def counts(rule: str) -> bool:
        return rule not in ignored and (not chosen or rule in chosen)

    plan = Plan(
        target=existing(target),
        device=device.value if device else "auto",
        buckets=(0,) if driver else bucket_sizes(buckets),
        steps=at_least(DEFAULT_STEPS if steps is None else steps, WARM_UP + 2, "--steps"),
        warm_up=WARM_UP,
        max_length=at_least(max_length, 1, "--max-length"),
        tiny=tiny,
        driver=driver,
        reference=reference,
        tolerance=None if tolerance is None else at_least(tolerance, 0, "--tolerance"),
        memory_limit_gib=positive(memory_limit, "--memory-limit"),
    )
    limits = Limits(positive(timeout, "--timeout") or timeout, memory_limit or spare_gib())
    known = read_suspects(suspects) if suspects else Suspects()
    with ended_by_signals(), progress(quiet, plan, compile_step) as tell:
        report = verify(plan, limits, known, steps is None, tell)
        sizes = tuple(bucket.size for bucket in report.buckets if bucket.verdict in RUNS)
        if compile_step and sizes:
            compiled = verify_compiled(replace(plan, buckets=sizes), limits.timeout_s, report.machine, tell)
        else:
            compiled = None
    if compiled is not None:
        report = with_compiled(report, compiled, known, min_coverage, counts)
    report = replace(report, findings=tuple(finding for finding in report.findings if counts(finding.rule)))
    colour, width = colour_and_width(output)
    write(render(report, form, quiet, colour, width), output)
    if html is not None:
        from capturelint import __version__
        from capturelint.report.html import verify_html

        write(verify_html(report, source_lines, ["capturelint", *sys.argv[1:]], __version__), html, "--html")
    faults = (bucket.message for bucket in report.buckets if bucket.fault and bucket.verdict is not Verdict.OK)
    for message in dict.fromkeys(faults):
        print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(EXIT_CODES[report.verdict])


def with_compiled(
    report: VerifyReport,
    compiled: CompileReport,
    suspects: Suspects,
    min_coverage: float | None,
    counts: Callable[[str], bool] = lambda rule: True,
) -> VerifyReport:
    """The report with what became of the compiled step; ``counts`` tells the rules that may fail it.

    A coverage that was not measured is not enough either.
    """
    lost = compiled.unwell or any(counts(event.kind.value) for event in compiled.failing)
    notes = [*report.notes, *summary(compiled)]
    if min_coverage is not None:
        percent = compiled.coverage.percent if compiled.coverage else None
        if percent is None or percent < min_coverage:
            lost = True
            seen = "was not measured: no GPU" if percent is None else f"is {percent:.1f}%"
            notes.append(f"compiled: coverage {seen}; --min-coverage asks for {min_coverage:g}%")
    findings = (*report.findings, *new_findings(compile_findings(compiled, suspects.findings), report.findings))
    return replace(report, findings=findings, notes=tuple(notes), compiled=compiled, compiled_lost=lost)


def new_findings(found: Iterable[Finding], known: Iterable[Finding]) -> list[Finding]:
    """What the captured run has not proven already."""
    proven = {(finding.rule, finding.place) for finding in known}
    return [each for each in found if each.place is None or (each.rule, each.place) not in proven]


def existing(target: str) -> str:
    """A target that can be tried. Raises ``UsageError``."""
    if target.startswith("hf:"):
        return target
    path = Path(target)
    if not path.exists():
        raise UsageError(f"{target}: no such file; a target is a .py file, hf:DIRECTORY or hf:MODEL_TYPE")
    if path.is_dir():
        raise UsageError(f"{target}: a directory; name the .py file in it that defines build, inputs and step")
    if not path.is_file():
        raise UsageError(f"{target}: not a regular file; a target is a .py file, hf:DIRECTORY or hf:MODEL_TYPE")
    return target


def bucket_sizes(text: str) -> tuple[int, ...]:
    """``1,2,4`` as numbers, each once, in the order given. Raises ``UsageError``."""
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not word.isascii() or not word.isdigit() or int(word) < 1]
    if wrong:
        raise UsageError(f"--buckets {text}: '{wrong[0]}' is no batch size; give whole numbers from 1, like 1,2,4,8")
    return tuple(dict.fromkeys(map(int, words)))


def at_least(value: Amount, least: int, option: str) -> Amount:
    """``value``. Raises ``UsageError`` unless it is ``least`` or above."""
    if not value >= least:
        raise UsageError(f"{option} {value}: must be at least {least}")
    return value


def positive(value: float | None, option: str) -> float | None:
    """``value``. Raises ``UsageError`` unless it is above 0."""
    if value is not None and not value > 0:
        raise UsageError(f"{option} {value:g}: must be above 0")
    return value


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM unwind, so that no worker outlives this process."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def progress(quiet: bool, plan: Plan, compiles: bool = False) -> Iterator[Tell]:
    """A line on a terminal that says what the worker does; silence elsewhere."""
    if quiet or not shows_progress(sys.stderr):
        yield lambda told: None
        return
    from rich.console import Console

    waiting, begun = Waiting(), set[tuple[int, bool]]()
    parts = len(plan.buckets) * (2 if compiles else 1)

    def line(told: Progress) -> str:
        if told.bucket:
            begun.add((told.bucket, told.stage is Stage.COMPILE))
        return status_line(told, plan) + waiting.left(max(0, len(begun) - 1) / parts)

    console = Console(stderr=True)
    with console.status("starting") as status:
        yield lambda told: status.update(line(told))


def status_line(told: Progress, plan: Plan) -> str:
    """``batch 4 of 1,2,4: replay, step 7 of 16``."""
    where = f"batch {told.bucket} of {','.join(map(str, plan.buckets))}: " if told.bucket else ""
    at = f", step {told.step + 1} of {plan.steps}" if told.step is not None else ""
    return f"{where}{told.stage.value}{at}"


def render(report: VerifyReport, form: Format, quiet: bool, colour: bool, width: int | None) -> str:
    """The report in the format asked for."""
    from capturelint.report import render as render_findings
    from capturelint.report.verify_json import render_verify_json
    from capturelint.report.verify_text import as_check, last_line, render_verify_text, with_reasons

    match form:
        case Format.JSON:
            return render_verify_json(report)
        case Format.TEXT:
            return render_verify_text(report, source_lines, colour, width, quiet)
        case Format.CONCISE:
            lines = render_findings(as_check(with_reasons(report)), form, read=source_lines, quiet=True)
            return lines if quiet else f"{lines}{last_line(report)}\n"
        case _:
            return render_findings(as_check(with_reasons(report)), form, read=source_lines, quiet=quiet)


def source_lines(path: Path, cell: int | None) -> list[str]:
    """The lines of a file that a finding is in; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
