"""``capturelint check``: static findings, written in the asked-for format."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer

from capturelint import __version__
from capturelint.catalog import add_rules, find_rules
from capturelint.cli.output import write
from capturelint.cli.terminal import colour_and_width, shows_progress
from capturelint.cli.waiting import Waiting
from capturelint.config import Config, declared_torch, is_in_project, is_version_or_range, load_config, require_rules
from capturelint.errors import SourceError, UsageError
from capturelint.escape import visible
from capturelint.finding import Finding
from capturelint.report import CheckReport, Format, render
from capturelint.report.model import counted
from capturelint.static.baseline import apply_baseline, write_baseline
from capturelint.static.check import Checked, Options, check
from capturelint.static.files import MAX_NBYTES, Sources, patterns
from capturelint.static.unread import unread
from capturelint.store import Store, user_directory
from capturelint.vocabulary import Confidence

LEVELS = {"certain": Confidence.CERTAIN, "likely": Confidence.LIKELY, "possible": Confidence.POSSIBLE}
ANY_TORCH = ">=1.13"
"""What a project that bounds no torch is used with."""
STDIN = Path("-")
PATIENCE_S, REFRESH_S = 1.0, 0.2
"""A run is quiet for so long, and its line of progress is written anew so often."""
DEFAULT_BASELINE = Path(".capturelint-baseline.json")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("check", epilog="Example: capturelint check src/ --format github")(run)


def run(
    paths: list[Path] = typer.Argument(
        ..., metavar="PATHS...", help="Files and directories to check; - is standard input."
    ),
    entry: list[str] = typer.Option([], "--entry", metavar="MODULE:NAME", help="Recorded code starts here."),
    bind: list[str] = typer.Option([], "--bind", metavar="PARAM=MODULE:CLASS", help="Type of an entry's parameter."),
    follow: list[str] = typer.Option([], "--follow", metavar="PACKAGE", help="Also analyse this package's sources."),
    torch: str | None = typer.Option(None, "--torch", metavar="VERSION", help="Torch version or range to check for."),
    confidence: str | None = typer.Option(
        None, metavar="LEVEL", help="Report at or above: certain, likely (default) or possible."
    ),
    select: list[str] = typer.Option([], metavar="RULE", help="Only these rules (comma-separated or repeated)."),
    ignore: list[str] = typer.Option([], metavar="RULE", help="Not these rules."),
    format: Format = typer.Option(Format.TEXT, "--format", help="How to write the report."),
    output: Path | None = typer.Option(None, "--output", "-o", metavar="FILE", help="Write the report to this file."),
    config: Path | None = typer.Option(None, metavar="FILE", help="Configuration file."),
    baseline: Path | None = typer.Option(None, metavar="FILE", help="Findings recorded there are not reported."),
    write_baseline_: bool = typer.Option(False, "--write-baseline", help="Record all findings as known."),
    diff_base: str | None = typer.Option(None, "--diff-base", metavar="REV", help="Only lines changed since REV."),
    html: Path | None = typer.Option(None, "--html", metavar="FILE", help="Also write the report as one HTML file."),
    diff: bool = typer.Option(False, "--diff", help="Show what --fix would change, as a patch, and change nothing."),
    fix: bool = typer.Option(False, "--fix", help="Rewrite what has a safe cure, then report the rest."),
    unsafe_fixes: bool = typer.Option(False, "--unsafe-fixes", help="Also the cures that may change values."),
    exit_zero: bool = typer.Option(False, "--exit-zero", help="Exit 0 whatever is found."),
    statistics: bool = typer.Option(False, "--statistics", help="Count findings by rule."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print findings only."),
    no_cache: bool = typer.Option(False, "--no-cache", help="Analyse everything afresh."),
    jobs: int = typer.Option(0, "--jobs", "-j", min=0, metavar="N", help="Processes to use; 0 is one for each core."),
    stdin_filename: Path | None = typer.Option(None, "--stdin-filename", metavar="NAME", help="What - is a text of."),
) -> None:
    """Find what breaks under capture, without running the code.

    Exit codes: 0 clean, 1 findings, 2 usage or unreadable input.
    """
    sources = given_sources(paths, stdin_filename, rewrites=diff or fix)
    paths = [stdin_filename or path if path == STDIN else path for path in paths]
    settings = load_config(paths[0], config)
    add_rules(settings.rules)
    require_rules(settings)
    find_rules([*names(select), *names(ignore)])
    wanted, unwanted = names(select) or settings.select, names(ignore) or settings.ignore
    level, version = level_of(confidence, settings), version_of(torch, settings, paths[0])
    assumed = ANY_TORCH if version is None and is_in_project(paths[0]) else version
    asked = options(settings, entry, bind, follow, assumed, jobs, no_cache, sources)

    def judged(asked: Options) -> CheckReport:
        report = report_of(check(paths, asked), version, level, wanted, unwanted, settings)
        return replace(report, notes=(*report.notes, *outside(report, paths, asked)))

    with progress(quiet) as tell:
        report = judged(replace(asked, tell=tell))
    known = baseline or settings.baseline
    if write_baseline_:
        count = write_baseline(report.findings, known or DEFAULT_BASELINE, settings.root)
        print(f"{counted(count, 'finding')} recorded in {known or DEFAULT_BASELINE}", file=sys.stderr)
        raise typer.Exit(told_faults(report.errors, 0))
    report = only_new(report, known, diff_base, paths, settings.root)
    if diff:
        from capturelint.cli.fixing import show_fixes

        code = int(show_fixes(report.shown, unsafe_fixes) > 0 and not exit_zero)
        raise typer.Exit(told_faults(report.errors, code))
    if fix:
        from capturelint.cli.fixing import write_fixes

        if write_fixes(report.shown, unsafe_fixes):
            sources = Sources()
            report = only_new(judged(replace(asked, sources=sources)), known, diff_base, paths, settings.root)
    write_report(report, format, output, statistics, quiet, sources)
    if html is not None:
        from capturelint.cli.fixing import patches
        from capturelint.report.html import check_html

        cures = patches(report.shown)
        write(check_html(report, sources.lines, ["capturelint", *sys.argv[1:]], cures), html, "--html")
    code = told_faults(report.errors, int(bool(report.shown) and not exit_zero))
    if asked.store is not None and asked.store.refusal:
        where = visible(f"{asked.store.directory}: {asked.store.refusal}")
        print(f"note: results are not kept, {where}; see cache-dir and --no-cache", file=sys.stderr)
    raise typer.Exit(code)


def level_of(confidence: str | None, settings: Config) -> Confidence:
    """The confidence from which findings are shown. Raises ``UsageError``."""
    if confidence is None:
        return settings.confidence or Confidence.LIKELY
    if confidence not in LEVELS:
        raise UsageError(f"--confidence {confidence}: say certain, likely or possible")
    return LEVELS[confidence]


def version_of(torch: str | None, settings: Config, path: Path) -> str | None:
    """The torch that was asked for, else configured, else declared around a path. Raises ``UsageError``."""
    if torch is not None and not is_version_or_range(torch):
        raise UsageError(f"--torch {torch}: say a version or a range, such as 2.7 or '>=2.6'")
    return torch or settings.torch or declared_torch(path)


def outside(report: CheckReport, paths: list[Path], asked: Options) -> Iterable[str]:
    """What the run was not given: entries where it found none, else files that those of its entries import."""
    if not report.entries:
        return to_name(paths, asked)
    return unread((entry.path for entry in report.entries), paths, asked.follow)


def only_new(
    report: CheckReport, known: Path | None, diff_base: str | None, paths: list[Path], root: Path
) -> CheckReport:
    """The report without what a baseline knows, and without lines that are as they were in a git revision."""
    if known is not None:
        compared = apply_baseline(report.findings, known, root=root, checked=paths)
        notes = tuple(f"no longer found, remove from the baseline: {gone}" for gone in compared.gone)
        report = replace(report, findings=compared.findings, in_baseline=compared.num_known, notes=report.notes + notes)
    if diff_base is not None:
        from capturelint.static.changed import changed_since, on_changed_lines

        report = replace(report, findings=on_changed_lines(report.findings, changed_since(diff_base, paths[0])))
    return report


def told_faults(errors: Iterable[SourceError], code: int) -> int:
    """Tell of the files that could not be checked; the exit code, which is ``code`` where there are none."""
    for error in errors:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        code = 2
    return code


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A line on a terminal that says how many files are analysed and how long the rest takes; silence elsewhere."""
    waiting = Waiting()
    shown: list[float] = []

    def tell(done: int, files: int) -> None:
        now = waiting.now()
        if now - waiting.started < PATIENCE_S or (shown and now - shown[-1] < REFRESH_S):
            return
        shown.append(now)
        line = f"{done:,} of {files:,} files analysed{waiting.left(done / files)}"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    if quiet or not shows_progress(sys.stderr):
        yield lambda done, files: None
        return
    try:
        yield tell
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def to_name(paths: list[Path], asked: Options) -> tuple[str, ...]:
    """What a run that found no entry could be told to check."""
    from capturelint.static.candidates import candidates
    from capturelint.static.check import find

    specs = candidates(find(paths, asked, []))
    which = "this one" if len(specs) == 1 else "one of these"
    return (f"to check {which}, add {' or '.join(f'--entry {spec}' for spec in specs)}",) if specs else ()


def given_sources(paths: list[Path], name: Path | None, *, rewrites: bool) -> Sources:
    """The files of a run: on disk, or the one on standard input under its name. Raises ``UsageError``."""
    if STDIN not in paths:
        if name is not None:
            raise UsageError("--stdin-filename: give - for the path, which is standard input")
        return Sources()
    if name is None:
        raise UsageError("-: name what is on standard input with --stdin-filename NAME")
    if len(paths) > 1:
        raise UsageError("-: standard input is checked alone")
    if rewrites:
        raise UsageError("-: --fix and --diff rewrite files, not standard input")
    return Sources({name: sys.stdin.buffer.read(MAX_NBYTES + 1)})


def store_of(settings: Config) -> Store | None:
    """Where results are kept: the project's own directory or the user's."""
    directory = settings.cache_dir or user_directory()
    return Store(directory) if directory is not None else None


def options(
    settings: Config,
    entry: list[str],
    bind: list[str],
    follow: list[str],
    version: str | None,
    jobs: int,
    no_cache: bool,
    sources: Sources,
) -> Options:
    """What the analysis is asked for, from the command line and the configuration."""
    return Options(
        jobs=jobs,
        store=None if no_cache else store_of(settings),
        sources=sources,
        entry=tuple(entry) or settings.entry,
        configured=not entry,
        bind=bindings(settings, bind),
        follow=tuple(follow) or settings.follow,
        torch=version,
        exclude=settings.exclude,
        include=settings.include,
        root=settings.root,
    )


def bindings(settings: Config, given: list[str]) -> dict[str, str]:
    """Parameter types from the configuration and ``--bind``. Raises ``UsageError``."""
    found = dict(settings.bind)
    for text in given:
        name, equals, target = text.partition("=")
        if not equals or ":" not in target:
            raise UsageError(f"--bind {text}: say PARAM=MODULE:CLASS")
        found[name] = target
    return found


def names(given: list[str]) -> tuple[str, ...]:
    """Rule names from repeated and comma-separated options."""
    return tuple(name.strip() for text in given for name in text.split(",") if name.strip())


def report_of(
    checked: Checked,
    version: str | None,
    level: Confidence,
    wanted: tuple[str, ...],
    unwanted: tuple[str, ...],
    settings: Config,
) -> CheckReport:
    """The findings that were asked for, as a report."""
    shown = tuple(
        finding
        for finding in checked.findings
        if finding.confidence >= level
        and (not wanted or finding.rule in wanted)
        and finding.rule not in unwanted
        and not ignored_in_file(finding, settings)
    )
    return CheckReport(__version__, version, checked.files, checked.entries, shown, checked.errors, notes=checked.notes)


def ignored_in_file(finding: Finding, settings: Config) -> bool:
    """Whether the configuration's ``per-file-ignores`` name this rule for this file."""
    if finding.place is None:
        return False
    path = os.path.relpath(finding.place.path, settings.root)
    return any(
        finding.rule in rules and patterns([pattern]).match_file(path) for pattern, rules in settings.per_file_ignores
    )


def write_report(
    report: CheckReport, format: Format, output: Path | None, statistics: bool, quiet: bool, sources: Sources
) -> None:
    """Write the report to the file or to stdout."""
    colour, width = colour_and_width(output)
    text = render(report, format, read=sources.lines, colour=colour, width=width, statistics=statistics, quiet=quiet)
    write(text, output)
