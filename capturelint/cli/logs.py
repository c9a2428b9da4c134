"""``capturelint logs``: read saved logs, or run a command and read what it prints."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated, BinaryIO

import typer
from typer.core import TyperCommand

from capturelint.catalog import load_messages, nearest
from capturelint.cli.output import write
from capturelint.cli.terminal import colour_and_width, shows_progress
from capturelint.errors import UsageError
from capturelint.escape import visible
from capturelint.logs.environment import telling
from capturelint.logs.matcher import LogFinding
from capturelint.logs.report import DEFAULT_FAIL_ON, STDIN, LogReport, read_logs
from capturelint.report.logs import fail_on_words, render_logs
from capturelint.report.model import Format
from capturelint.vocabulary import Severity

COMMAND_OUTPUT = Path("output")
"""How the output of a command is named in findings."""
SEVERITIES = [severity.value for severity in Severity if severity is not Severity.INFO]
ALIASES = {"out-of-memory": "oom"}


class LogsCommand(TyperCommand):
    """Keeps what stands after ``--`` apart: a command to run, not files to read."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Cut at the first ``--``."""
        if "--" in args:
            at = args.index("--")
            ctx.meta["command"] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(cls=LogsCommand, epilog="Example: capturelint logs server.log --fail-on skip,oom")(logs)


def logs(
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="Logs to read; - is stdin; gzip is fine.")
    ] = None,
    fail_on: Annotated[
        str, typer.Option(metavar="LIST", help=f"Severities that fail, of {', '.join(SEVERITIES)}; or all, or none.")
    ] = fail_on_words(DEFAULT_FAIL_ON),
    form: Annotated[Format, typer.Option("--format", help="How to write the report.")] = Format.TEXT,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report to this file.")
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this rule or message id; repeatable.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Not this rule or message id; repeatable.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Findings only.")] = False,
) -> None:
    """Find skips, partitions, graph breaks and fallbacks in logs.

    The logs are saved ones, or what a command prints: `capturelint logs -- COMMAND ...` runs the command with the
    logging that torch needs, shows its output, judges it, and keeps its exit code if it fails itself.

    Exit codes: 0 nothing at or above --fail-on, 1 found, 2 usage or a log that cannot be read.
    """
    failing = read_fail_on(fail_on)
    keep = chosen(select or [], ignore or [])
    command: list[str] | None = ctx.meta.get("command")
    if command is None and not files:
        raise UsageError("no log given: name files, - for stdin, or -- and a command to run")
    if command is not None and files:
        raise UsageError("give logs to read or, after --, a command to run, not both")
    if command is not None:
        report, code = run_and_read(command, keep, failing, machine_readable=form is not Format.TEXT and not output)
    else:
        with progress(files or [], shown=shows_progress(sys.stderr) and not quiet) as advance:
            report, code = read_logs(files or [], keep=keep, fail_on=failing, advance=advance), 0
    colour, width = colour_and_width(output)
    write(render_logs(report, form, colour=colour, quiet=quiet, width=width), output)
    for error in report.errors:
        print(f"error: {visible(str(error))}", file=sys.stderr)
    raise typer.Exit(code or (2 if report.errors else int(bool(report.failing))))


def read_fail_on(text: str) -> frozenset[Severity]:
    """A comma-separated list of severities. Raises ``UsageError`` with the nearest word."""
    words = [ALIASES.get(word, word) for word in filter(None, (word.strip() for word in text.split(",")))]
    if words == ["all"]:
        return frozenset(Severity) - {Severity.INFO}
    if words == ["none"]:
        return frozenset()
    for word in words:
        if word not in SEVERITIES:
            known = [*SEVERITIES, "all", "none"]
            cure = nearest(word, known) or f"; choose from {', '.join(known)}"
            raise UsageError(f"--fail-on {text}: unknown severity '{word}'{cure}")
    return frozenset(map(Severity, words))


def chosen(select: Iterable[str], ignore: Iterable[str]) -> Callable[[LogFinding], bool]:
    """Which findings to keep, by rule or message id. Raises ``UsageError`` for a name that is neither."""
    known = {name for message in load_messages() for name in (message.id, message.rule)}
    wanted, unwanted = set(select), set(ignore)
    for name in sorted((wanted | unwanted) - known):
        raise UsageError(f"unknown rule or message '{name}'{nearest(name, known)}")

    def keep(finding: LogFinding) -> bool:
        names = {finding.message.id, finding.message.rule}
        return bool(not wanted or names & wanted) and not names & unwanted

    return keep


@contextmanager
def progress(files: Iterable[Path], *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar over the bytes of the files, on a terminal only."""
    if not shown:
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    sizes = [path.stat().st_size for path in files if path != STDIN and path.is_file()]
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=sum(sizes) or None)
        yield lambda size: bar.advance(task, size)


def run_and_read(
    command: list[str], keep: Callable[[LogFinding], bool], fail_on: frozenset[Severity], *, machine_readable: bool
) -> tuple[LogReport, int]:
    """Run a command, show what it prints as it comes, then judge it. The second value is its exit code.

    With a machine-readable report on stdout, what the command prints there goes to stderr.
    """
    if not command:
        raise UsageError("no command after --")
    with tempfile.TemporaryDirectory(prefix="capturelint-") as directory:
        path = Path(directory) / "output"
        with path.open("wb") as log:
            code = run(command, log, to_stderr=machine_readable)
        report = read_logs([path], keep=keep, fail_on=fail_on)
    renamed = tuple(renamed_finding(finding) for finding in report.findings)
    return LogReport(renamed, report.errors, report.num_logs, report.num_lines, fail_on), code


def renamed_finding(finding: LogFinding) -> LogFinding:
    """The finding under the name that a user can make sense of, not a temporary file's."""
    return replace(finding, path=COMMAND_OUTPUT)


def run(command: list[str], log: BinaryIO, *, to_stderr: bool) -> int:
    """Run the command; every line goes to our own stream at once and into ``log``. Returns its exit code."""
    if shutil.which(command[0]) is None:
        raise UsageError(f"cannot run '{command[0]}': no such command")
    lock = threading.Lock()
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=telling(os.environ), bufsize=0
        )
    except OSError as error:
        raise UsageError(f"cannot run '{command[0]}': {error.strerror or error}") from error
    assert process.stdout is not None
    assert process.stderr is not None
    shown = sys.stderr if to_stderr else sys.stdout
    threads = [
        threading.Thread(target=forward, args=(process.stdout, shown.buffer, log, lock)),
        threading.Thread(target=forward, args=(process.stderr, sys.stderr.buffer, log, lock)),
    ]
    for thread in threads:
        thread.start()
    with ended_with(process):
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # The terminal sent the interrupt to the command too; its last words are still judged.
            code = process.wait()
    for thread in threads:
        thread.join()
    return 128 - code if code < 0 else code  # as the shell reports a signal


@contextmanager
def ended_with(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand a SIGTERM on to the command, as a CI system ends a job; its last words are still judged."""
    previous = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def forward(source: IO[bytes], shown: BinaryIO, log: BinaryIO, lock: threading.Lock) -> None:
    """Copy bytes as they come; into ``log`` only whole lines, so that two streams do not cut into each other."""
    rest = b""
    while piece := source.read(65536):
        try:
            shown.write(piece)
            shown.flush()
        except (BrokenPipeError, ValueError):
            # Whoever read our output is gone; the command may still finish.
            shown = open(os.devnull, "wb")  # noqa: SIM115  stays open until the process ends
        rest += piece
        cut = rest.rfind(b"\n") + 1
        if cut:
            with lock:
                log.write(rest[:cut])
            rest = rest[cut:]
    if rest:
        with lock:
            log.write(rest + b"\n")
