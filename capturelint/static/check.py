"""The straight line of ``check``: paths -> sources -> entries -> events -> findings, suppressions and fingerprints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from capturelint.catalog import load_operations, load_rules
from capturelint.errors import SourceError, UsageError
from capturelint.finding import Finding
from capturelint.static.baseline import with_fingerprints
from capturelint.static.events import Event
from capturelint.static.files import SourceText, find_sources, in_cells, read_source
from capturelint.static.ignores import apply_ignores
from capturelint.static.index import WATCHED, Index, Module
from capturelint.static.judge import judge
from capturelint.static.parallel import run_entries
from capturelint.static.regions import Entry, EntryKind, find_entries
from capturelint.static.roots import Outcome, Stage

RECURSION_LIMIT = 20_000
"""Calls of analysed code are calls of the interpreter: sixty of them, each a few nested expressions deep."""


@dataclass(frozen=True, slots=True)
class Options:
    """What ``check`` is asked for. ``entry`` is MODULE:NAME, ``bind`` maps a parameter to MODULE:CLASS."""

    entry: tuple[str, ...] = ()
    bind: Mapping[str, str] = field(default_factory=dict)
    follow: tuple[str, ...] = ()
    torch: str | None = None
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    root: Path = field(default_factory=Path.cwd)
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Checked:
    """What ``check`` found: every finding of every rule and confidence, suppressed ones marked."""

    files: int
    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...]
    errors: tuple[SourceError, ...]
    notes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    unlisted: frozenset[str] = frozenset()
    outcomes: tuple[Outcome, ...] = ()


class Sources:
    """Reads files for the index and keeps what suppression and notebooks need of them."""

    def __init__(self) -> None:
        self.texts: dict[Path, SourceText] = {}

    def read(self, path: Path) -> str:
        """The text of a file, as one module."""
        source = read_source(path)
        self.texts[path] = source
        return source.text


def check(paths: Sequence[Path], options: Options) -> Checked:
    """Check files and directories. Raises ``UsageError`` for paths and entries that do not exist."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), RECURSION_LIMIT))
    sources = Sources()
    unlisted_directories: list[SourceError] = []
    files = list(
        find_sources(
            paths, exclude=options.exclude, include=options.include, root=options.root,
            on_error=unlisted_directories.append,
        )
    )  # fmt: skip
    index = Index(sources.read, options.follow)
    for path in files:
        index.add(path)
    modules = [module for path in files if (module := index.load(path)) is not None]
    index.mentioned = frozenset(word for word in WATCHED if any(word in module.text for module in modules))
    entries = chosen_entries(modules, index, options)
    stage = Stage(index, load_operations(), options.bind)
    events: list[Event] = []
    notes: list[str] = []
    unlisted: set[str] = set()
    outcomes: list[Outcome] = []
    for entry, outcome in zip(entries, run_entries(stage, entries, options.jobs), strict=True):
        outcomes.append(outcome)
        events += outcome.events
        unlisted |= outcome.unlisted
        if outcome.exhausted:
            notes.append(
                f"{entry.path}:{entry.line}: {entry.name} is larger than the analysis limit; the rest of it is unread"
            )
    findings = judge(events, load_rules(), options.torch)
    if options.torch is None:
        notes += [undeclared(event) for event in events if event.torch]
    return Checked(
        files=len(files),
        entries=tuple(entries),
        findings=finish(findings, modules, sources, options.root),
        errors=tuple(sorted([*index.errors.values(), *unlisted_directories], key=str)),
        notes=tuple(notes),
        events=tuple(events),
        unlisted=frozenset(unlisted),
        outcomes=tuple(outcomes),
    )


def shown(path: Path) -> str:
    """A path as it is printed: from the working directory."""
    return Path(os.path.relpath(path)).as_posix()


def undeclared(event: Event) -> str:
    """What is said of a hazard of older releases where the project declares no torch: no finding, but not silence."""
    place = event.site.place
    where = f"{shown(place.path)}:{place.line}"
    return f"{where}: `{event.name}` is refused by torch {event.torch}; no torch is declared, see --torch"


def finish(findings: list[Finding], modules: Iterable[Module], sources: Sources, root: Path) -> tuple[Finding, ...]:
    """Suppress, place in notebook cells, and give fingerprints."""
    by_path: dict[Path, list[Finding]] = {}
    for finding in findings:
        assert finding.place is not None
        by_path.setdefault(finding.place.path, []).append(finding)
    done: list[Finding] = []
    for path in {module.path for module in modules} | by_path.keys():
        source = sources.texts[path]
        answered = apply_ignores(by_path.get(path, []), path, source.text)
        done += [in_cells(finding, source) for finding in answered]
    return with_fingerprints(done, root)


def chosen_entries(modules: list[Module], index: Index, options: Options) -> list[Entry]:
    """The entries that were named, else those that the modules show."""
    if options.entry:
        return [named_entry(spec, index) for spec in options.entry]
    found = [entry for module in modules for entry in find_entries(module)]
    return sorted(found, key=lambda entry: (str(entry.path), entry.line, entry.kind.value))


def named_entry(spec: str, index: Index) -> Entry:
    """The entry that ``--entry MODULE:NAME`` names. Raises ``UsageError``."""
    module_name, _, name = spec.partition(":")
    module = index.find(module_name)
    if module is None and module_name.endswith(".py"):
        module = next((m for m in index.modules.values() if m is not None and str(m.path) == module_name), None)
    if module is None or not name:
        raise UsageError(f"--entry {spec}: no module '{module_name}' in the checked paths; say MODULE:NAME")
    owner, _, method = name.rpartition(".")
    if owner:
        definition = module.classes.get(owner.rpartition(".")[2])
        function = definition.methods.get(method) if definition is not None else None
        if function is None and definition is not None:
            raise UsageError(f"--entry {spec}: class '{owner}' in {module.path} defines no '{method}' itself")
    else:
        function = module.functions.get(name)
    if function is None:
        raise UsageError(f"--entry {spec}: no function or method '{name}' in {module.path}")
    return Entry(module.path, function.node.lineno, name, "named by --entry", EntryKind.FUNCTION, module, function)
