"""The straight line of ``check``: paths -> sources -> entries -> events -> findings, suppressions and fingerprints.

What an earlier run worked out is not worked out again, file by file and as a whole (``cache``), and the analyser is
not even imported where nothing has changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from capturelint.errors import SourceError
from capturelint.finding import Finding
from capturelint.report.model import EntryRecord, relative
from capturelint.static.baseline import with_fingerprints
from capturelint.static.files import Sources, find_sources, in_cells
from capturelint.static.ignores import apply_ignores
from capturelint.static.index import WATCHED, Index
from capturelint.store import Store, digest

if TYPE_CHECKING:
    from capturelint.static.analyse import Analysed, Analyser, Ran
    from capturelint.static.cache import Cache
    from capturelint.static.events import Event
    from capturelint.static.roots import Outcome

MIN_NBYTES = 100_000
"""Fewer are analysed before a worker has started."""
MAX_FILE_S = 60.0
"""Processor time for one file with all of its entries; the largest of transformers takes a fraction of it."""
OWN = ("its own",)
"""What is asked of a file where the user names no entry: those that it shows."""
COMMENT = b"capturelint:"
HEADER_NBYTES = 4096
GENERATED = re.compile(rb"\bgenerated\s+from\s+[`'\"]?([\w./\\-]+\.py)\b", re.IGNORECASE)
"""What the head of a generated file says of its source, a Python file like itself."""
WATCHED_BYTES = {word: word.encode() for word in WATCHED}


@dataclass(frozen=True, slots=True)
class Options:
    """What ``check`` is asked for. ``entry`` is MODULE:NAME, ``bind`` maps a parameter to MODULE:CLASS.

    ``configured`` entries are the whole project's: one in a file that is not checked is told, and is no fault.
    ``jobs`` 0 is one process for each core. Without a ``store`` nothing is kept and nothing that was kept is used.
    """

    entry: tuple[str, ...] = ()
    configured: bool = False
    bind: Mapping[str, str] = field(default_factory=dict)
    follow: tuple[str, ...] = ()
    torch: str | None = None
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    root: Path = field(default_factory=Path.cwd)
    jobs: int = 1
    store: Store | None = None
    sources: Sources = field(default_factory=Sources)
    max_file_s: float = MAX_FILE_S
    watches: bool = False
    """Whether the values at every call are noted, for ``Outcome.calls``."""
    tell: Callable[[int, int], None] = lambda done, files: None
    """Hears how many of the files that have to be analysed are done."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What ``check`` found: every finding of every rule and confidence, suppressed ones marked.

    ``files`` is how many were checked; those that could not be are in ``errors``.
    ``analysed`` is what each file gave; empty where an earlier run over the same files had been kept.
    """

    files: int
    entries: tuple[EntryRecord, ...]
    findings: tuple[Finding, ...]
    errors: tuple[SourceError, ...]
    notes: tuple[str, ...] = ()
    analysed: tuple[Analysed, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        """Every event, in the order of entries."""
        return tuple(event for ran in ran_in_order(self.analysed) for event in ran.events)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What running each entry gave, in the order of entries; only of entries that this process ran."""
        found = {
            ran.rank: outcome for one in self.analysed for ran, outcome in zip(one.ran, one.outcomes, strict=False)
        }
        return tuple(found[rank] for rank in sorted(found))

    @property
    def unlisted(self) -> frozenset[str]:
        """Operations that the catalogue does not list."""
        return frozenset(name for outcome in self.outcomes for name in outcome.unlisted)


@dataclass(frozen=True, slots=True)
class Seen:
    """A file before it is analysed: the digest of its content, or why it has none."""

    nbytes: int = 0
    content: str | None = None
    error: SourceError | None = None
    words: frozenset[str] = frozenset()
    has_comments: bool = False
    """Whether there may be a comment for us in it."""
    generated_from: str = ""
    """The path of the file that it says it is generated from."""


def check(paths: Sequence[Path], options: Options) -> Checked:
    """Check files and directories. Raises ``UsageError`` for paths and entries that do not exist."""
    unlisted: list[SourceError] = []
    files = find(paths, options, unlisted)
    seen = {path: look(path, options.sources) for path in files}
    index = Index(options.sources.text, options.follow)
    contents = Contents(seen, options.sources)
    cache = key = None
    if options.store is not None:
        from capturelint.static.cache import Cache

        cache = Cache(options.store, options)
        if not unlisted and all(one.content is not None for one in seen.values()):
            key = cache.run_key(index, files, contents)
    for path in files if key is None or options.follow else ():
        index.add(path)
    if cache is not None and key is not None:
        kept = cache.checked(key, index, contents)
        if kept is not None:
            return with_notes(Checked(*kept), unfollowed(options.follow, index))
        for path in () if options.follow else files:
            index.add(path)
    index.mentioned = frozenset().union(*(one.words for one in seen.values()))
    unasked = templates(seen) if not options.entry else frozenset()
    found = analyse_all(files, seen, index, options, cache, contents, unasked)
    errors = [*unlisted, *(one.error for one in seen.values() if one.error), *(e for f in found for e in f.errors)]
    checked = conclude(found, seen, {str(error): error for error in errors}, options, unasked)
    checked = with_notes(checked, unbound(options.bind, index))
    if cache is not None and key is not None and all(f.complete for f in found) and is_current(found, seen):
        cache.keep_checked(
            key, index, (checked.files, checked.entries, checked.findings, checked.errors, checked.notes), found
        )
    return with_notes(checked, unfollowed(options.follow, index))  # not kept: a package may be installed by next time


def with_notes(checked: Checked, notes: Iterable[str]) -> Checked:
    """What was found, with more to say of the run."""
    return replace(checked, notes=(*checked.notes, *notes))


def unfollowed(packages: Iterable[str], index: Index) -> Iterator[str]:
    """What is said of packages to follow that are not there."""
    for name in packages:
        if index.resolve(name, None) is None:
            yield f"{name} is not followed: no such package is checked or installed beside capturelint"


def unbound(bind: Mapping[str, str], index: Index) -> Iterator[str]:
    """What is said of parameters whose type is no class of the checked code: nothing is known of them."""
    for parameter, target in bind.items():
        module_name, _, name = target.partition(":")
        module = index.find(module_name)
        if module is None:
            yield f"{parameter}={target} binds nothing: no module '{module_name}' in the checked paths"
        elif not any(name in defined for defined in (module.classes, module.imports, module.assignments)):
            yield f"{parameter}={target} binds nothing: no class '{name}' in {relative(module.path)}"


def find(paths: Sequence[Path], options: Options, unlisted: list[SourceError]) -> list[Path]:
    """The files to check: what is found under the paths, and what an editor gave."""
    given = [path for path in paths if options.sources.holds(path)]
    listed = [path for path in paths if path not in given]
    walked = find_sources(
        listed, exclude=options.exclude, include=options.include, root=options.root, on_error=unlisted.append
    )
    return sorted({os.path.abspath(path): path for path in (*walked, *given)}.values(), key=os.path.abspath)


def look(path: Path, sources: Sources) -> Seen:
    """Read a file once, to know it again."""
    try:
        content = sources.content(path)
    except SourceError as error:
        return Seen(error=error)
    words = frozenset(word for word, sought in WATCHED_BYTES.items() if sought in content)
    said = GENERATED.search(content, 0, HEADER_NBYTES)
    return Seen(
        len(content),
        digest(content),
        None,
        words,
        COMMENT in content or path.suffix == ".ipynb",
        said[1].decode() if said is not None else "",
    )


def templates(seen: Mapping[Path, Seen]) -> frozenset[Path]:
    """The checked files from which another checked file is generated.

    What is imported and run is the generated file, and it has all of its code in one place: entries of both would tell
    each fault twice. A source is known by the end of its path: its name and, where that was said, its directory's.
    """
    said = {(path, PurePosixPath(one.generated_from)) for path, one in seen.items() if one.generated_from}
    by_name: dict[str, list[Path]] = {}
    for path in seen if said else ():
        by_name.setdefault(path.name, []).append(path)
    return frozenset(
        source
        for path, named in said
        for source in by_name.get(named.name, ())
        if source != path and source.absolute().parent.name == (named.parent.name or path.absolute().parent.name)
    )


class Contents:
    """The digest of any file's content: a checked one's as it was seen first, another's when it is asked for."""

    def __init__(self, seen: Mapping[Path, Seen], sources: Sources) -> None:
        self.known = {path: one.content for path, one in seen.items()}
        self.sources = sources

    def __call__(self, path: Path) -> str | None:
        """The digest; ``None`` where the file cannot be read."""
        if path not in self.known:
            self.known[path] = look(path, self.sources).content
        return self.known[path]


def is_current(found: Iterable[Analysed], seen: Mapping[Path, Seen]) -> bool:
    """Whether every checked file was analysed with the content that it was first seen with."""
    return all(seen[path].content == content for one in found for path, content in one.digests.items() if path in seen)


def analyse_all(
    files: Sequence[Path],
    seen: Mapping[Path, Seen],
    index: Index,
    options: Options,
    cache: Cache | None,
    contents: Contents,
    unasked: frozenset[Path],
) -> list[Analysed]:
    """What each readable file gives: kept by an earlier run, or worked out here or by workers."""
    readable = [path for path in files if seen[path].error is None]
    # Entries that the user named are looked up in any case: that they exist is not in the record of any file.
    analyser = new_analyser(index, options) if options.entry else None
    kept: list[Analysed] = []
    for path in readable if cache is not None else ():
        asked = analyser.asked(path) if analyser is not None else () if path in unasked else OWN
        known = cache.analysed(index, path, asked, contents) if cache is not None else None
        kept += [known] if known is not None else []
    done = {found.path for found in kept}
    missing = [(path, seen[path].nbytes) for path in readable if path not in done]
    if missing and analyser is None:
        analyser = new_analyser(index, options, unasked)
    made = analyse_missing(missing, analyser, options, cache) if analyser is not None and missing else []
    return sorted([*kept, *made], key=lambda found: os.path.abspath(found.path))


def new_analyser(index: Index, options: Options, unasked: frozenset[Path] = frozenset()) -> Analyser:
    """The analyser, imported where there is something to analyse. Raises ``UsageError`` for a missing entry."""
    from capturelint.static.analyse import Analyser

    return Analyser(index, options, unasked)


def analyse_missing(
    missing: Sequence[tuple[Path, int]], analyser: Analyser, options: Options, cache: Cache | None
) -> list[Analysed]:
    """What files give, worked out here or by workers, and kept."""

    def analyse(path: Path) -> Analysed:
        found = analyser.analyse(path)
        if cache is not None:
            cache.keep_analysed(analyser.index, found, analyser.asked(path))
        return found

    from capturelint.static.analyse import few_collections, without_outcomes

    def told(found: Iterable[Analysed]) -> Iterator[Analysed]:
        for done, one in enumerate(found, 1):
            options.tell(done, len(missing))
            yield one

    if cache is not None:
        cache.store.ready()  # workers only inherit what this process knows
    jobs = num_workers(missing, options.jobs)
    with few_collections():
        if jobs < 2:
            return list(told(analyse(path) for path, _ in missing))
        from capturelint.static.parallel import spread

        return list(told(spread(lambda path: without_outcomes(analyse(path)), missing, jobs)))


def num_workers(missing: Sequence[tuple[Path, int]], jobs: int) -> int:
    """How many processes are worth their start; as many as were asked for where a number was given."""
    from capturelint.static.parallel import can_fork, num_cores

    if len(missing) < 2 or not can_fork() or (jobs == 0 and sum(nbytes for _, nbytes in missing) < MIN_NBYTES):
        return 1
    return min(jobs or num_cores(), len(missing))


def conclude(
    found: Sequence[Analysed],
    seen: Mapping[Path, Seen],
    errors: Mapping[str, SourceError],
    options: Options,
    unasked: frozenset[Path],
) -> Checked:
    """Events of all files into findings, in the order of entries."""
    from capturelint.catalog import load_rules
    from capturelint.static.judge import judge

    ordered = ran_in_order(found)
    events = [event for ran in ordered for event in ran.events]
    notes = [
        f"{relative(ran.entry.path)}:{ran.entry.line}: {ran.entry.name} is larger than the analysis limit; "
        "the rest of it is unread"
        for ran in ordered
        if ran.exhausted
    ]
    notes += [f"{relative(one.path)}: {one.given_up}; it was not analysed" for one in found if one.given_up]
    run = {ran.rank[0] for ran in ordered}
    notes += [
        f"{spec} is configured as an entry, and is in none of the checked files"
        for at, spec in enumerate(options.entry)
        if options.configured and at not in run
    ]
    if unasked:
        notes.append(as_generated(unasked))
    if options.torch is None:
        notes += [undeclared(event) for event in events if event.torch]
    return Checked(
        files=len(seen.keys() - {error.path for error in errors.values()}),
        entries=tuple(ran.entry for ran in ordered),
        findings=finish(judge(events, load_rules(), options.torch), found, seen, options, unasked),
        errors=tuple(errors[text] for text in sorted(errors)),
        notes=tuple(notes),
        analysed=tuple(found),
    )


def ran_in_order(found: Iterable[Analysed]) -> list[Ran]:
    """Every entry that was run: as they were named, or by place."""
    return sorted((ran for one in found for ran in one.ran), key=lambda ran: ran.rank)


def as_generated(unasked: Collection[Path]) -> str:
    """What is said of files that have no entries because others are generated from them."""
    if len(unasked) > 1:
        return f"{len(unasked)} files are checked as the files that are generated from them"
    return f"{relative(next(iter(unasked)))} is checked as the file that is generated from it"


def undeclared(event: Event) -> str:
    """What is said of a hazard of older releases where the project declares no torch: no finding, but not silence."""
    place = event.site.place
    where = f"{relative(place.path)}:{place.line}"
    return f"{where}: `{event.name}` is refused by torch {event.torch}; no torch is declared, see --torch"


def finish(
    findings: Iterable[Finding],
    found: Iterable[Analysed],
    seen: Mapping[Path, Seen],
    options: Options,
    unasked: frozenset[Path],
) -> tuple[Finding, ...]:
    """Suppress, place in notebook cells, and give fingerprints; comments in files of which nothing is asked are not
    read.
    """
    by_path: dict[Path, list[Finding]] = {}
    for finding in findings:
        assert finding.place is not None
        by_path.setdefault(finding.place.path, []).append(finding)
    done: list[Finding] = []
    commented = {path for path, one in seen.items() if one.has_comments and one.error is None}
    for path in commented - unasked | by_path.keys():
        done += answered(path, by_path.get(path, []), options.sources, path not in seen or seen[path].has_comments)
    around = {place: name for one in found for place, name in one.around.items()}
    return with_fingerprints(done, options.root, options.sources, around)


def answered(path: Path, findings: list[Finding], sources: Sources, has_comments: bool) -> list[Finding]:
    """The findings of one file after its comments, in the cells of a notebook."""
    if not has_comments:
        return findings
    try:
        source = sources.source(path)
    except SourceError:  # gone since it was analysed
        return findings
    return [in_cells(finding, source) for finding in apply_ignores(findings, path, source.text)]
