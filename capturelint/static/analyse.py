"""One file -> its entries and what running them gave: the piece of work that is shared out, limited and kept.

A file is parsed only where an entry may be in it; the others are read for their syntax, which takes half the time. No
file can hold up a run: one that takes too long or nests too deeply is given up, said aloud, and costs only itself.
"""

from __future__ import annotations

import gc
import signal
import symtable
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from capturelint.catalog import load_operations
from capturelint.errors import SourceError, UsageError
from capturelint.report.model import EntryRecord
from capturelint.static.baseline import Spans, enclosing, spans_of
from capturelint.static.check import OWN, Options
from capturelint.static.events import Event
from capturelint.static.files import decode_source
from capturelint.static.graphed import handing_over, may_hand_over
from capturelint.static.index import Index, Lookup, Module, parse
from capturelint.static.regions import Entry, EntryKind, find_entries, may_have_entries
from capturelint.static.roots import Outcome, Stage, run_entry
from capturelint.store import digest

RECURSION_LIMIT = 20_000
"""Calls of analysed code are calls of the interpreter: sixty of them, each a few nested expressions deep."""
YOUNG_OBJECTS = 200_000
"""Objects made between two looks for garbage; Python's own number is 700 (2,000 since 3.13)."""
NEW_MODULES = 8
"""Modules read after which all that is there is set aside: never looked at for garbage again."""
STACK_SLOTS = 140_000
"""Room for the frames of a whole analysis, in words: 1.1 MB, for which CPython maps 2 MB."""
MAX_NUM_CHARACTERS = 5_000_000
"""Sources that a process keeps parsed; a tree takes about 25 times the memory of its text."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One entry and what running it gave. ``rank`` orders the entries of a run."""

    entry: EntryRecord
    rank: tuple[int, str, int, str]
    events: tuple[Event, ...] = ()
    exhausted: bool = False
    """Larger than the analysis limit: the rest of it is unread."""


@dataclass(slots=True)
class Analysed:
    """What one file gave, and all that it depends on.

    ``lookups`` are the names that were looked for and ``digests`` the contents that were read. ``around`` names the
    function around a line with an event. ``given_up`` is the limit that the file met, if any. What is not ``complete``
    cannot be kept: it depends on the speed of the machine or on a file that was not read.
    """

    path: Path
    ran: tuple[Ran, ...] = ()
    errors: tuple[SourceError, ...] = ()
    around: Mapping[tuple[Path, int], str] = field(default_factory=dict)
    lookups: Mapping[Lookup, Path | None] = field(default_factory=dict)
    digests: Mapping[Path, str] = field(default_factory=dict)
    given_up: str = ""
    complete: bool = True
    outcomes: tuple[Outcome, ...] = ()


class OutOfTimeError(BaseException):
    """A file took longer than it may. Not an ``Exception``: nothing between here and the limit may hold it up."""


class Analyser:
    """Analyses files one by one, over one index; each process that takes part has its own.

    Where the user names no entry, files show their own, but for the ``unasked``.
    """

    def __init__(self, index: Index, options: Options, unasked: frozenset[Path] = frozenset()) -> None:
        self.index = index
        self.sources = options.sources
        self.stage = Stage(index, load_operations(), options.bind, options.watches)
        self.max_file_s = options.max_file_s
        self.unasked = unasked
        self.option = "entry" if options.configured else "--entry"
        self.digests: dict[Path, str] = {}
        self.spans: dict[Path, Spans] = {}
        self.latest: tuple[Path, str] | None = None
        self.parsed = 0
        index.read = self.read
        self.named = self.files_of(options) if options.entry else None

    def files_of(self, options: Options) -> dict[Path, list[tuple[int, str]]]:
        """The entries that the user named, by the file that they are in. Raises ``UsageError``."""
        found: dict[Path, list[tuple[int, str]]] = {}
        for at, spec in enumerate(options.entry):
            if named_module(spec, self.index) is not None or not options.configured:
                found.setdefault(self.named_entry(spec).path, []).append((at, spec))
        return found

    def named_entry(self, spec: str) -> Entry:
        """The entry that the user names so. Raises ``UsageError``."""
        try:
            return named_entry(spec, self.index)
        except UsageError as error:
            raise UsageError(f"{self.option} {error}") from error

    def read(self, path: Path) -> str:
        """The text of a file, as one module; what was read is remembered by its digest."""
        if self.latest is None or self.latest[0] != path:
            content = self.sources.content(path)
            self.digests[path] = digest(content)
            self.latest = path, decode_source(path, content).text
        return self.latest[1]

    def asked(self, path: Path) -> Sequence[str]:
        """What is asked of a file: its own entries, or those that the user named in it."""
        if self.named is None:
            return OWN if path not in self.unasked else ()
        return [f"{at} {spec}" for at, spec in self.named.get(path, ())]

    def analyse(self, path: Path) -> Analysed:
        """All of one file; faults of the file are in the answer."""
        self.index.lookups = {}
        self.latest = None
        try:
            with deep_calls(), time_limit(self.max_file_s):
                found = with_room(lambda: self.analyse_entries(path))
        except OutOfTimeError:
            found = self.given_up(path, f"takes longer than {self.max_file_s:g} s of processor time")
        except RecursionError:
            found = self.given_up(path, "is nested too deeply")
        except Exception as fault:  # noqa: BLE001 - a fault of ours costs one file, is told as one and ends in exit code 2
            self.forget_half_done()
            found = Analysed(path, errors=(SourceError(path, None, described(fault)),), complete=False)
        self.fill_in(found)
        if len(self.index.modules) - self.parsed >= NEW_MODULES and gc.get_threshold()[0] == YOUNG_OBJECTS:
            self.parsed = len(self.index.modules)
            gc.collect()  # among what is new since the last time
            gc.freeze()
        return found

    def analyse_entries(self, path: Path) -> Analysed:
        """The entries of a file, run."""
        if self.named is None or path not in self.named:
            fault = self.unparsed(path)
            if fault is not None:
                return fault
        module = self.index.load(path)
        if module is None:
            return Analysed(path, errors=(self.index.errors[path],))
        if self.named is None:
            entries = [(0, entry) for entry in find_entries(module, handing_over(module, self.index))]
        else:
            entries = [(at, self.named_entry(spec)) for at, spec in self.named.get(path, ())]
        outcomes = [run_entry(self.stage, entry) for _, entry in entries]
        return Analysed(
            path,
            ran=tuple(ran(at, entry, outcome) for (at, entry), outcome in zip(entries, outcomes, strict=True)),
            outcomes=tuple(outcomes),
        )

    def unparsed(self, path: Path) -> Analysed | None:
        """The whole answer for a file that no tree is needed of; ``None`` where one is."""
        try:
            text = self.read(path)
            if self.asked(path) == OWN and (may_have_entries(text) or may_hand_over(text)):
                return None
            check_syntax(text, path)
        except SourceError as error:
            return Analysed(path, errors=(error,))
        return Analysed(path)

    def given_up(self, path: Path, why: str) -> Analysed:
        """The answer for a file that met a limit."""
        self.forget_half_done()
        return Analysed(path, given_up=why, complete=False)

    def forget_half_done(self) -> None:
        """Leave the index without modules that were being read when an analysis ended."""
        modules = self.index.modules
        self.index.modules = {at: m for at, m in modules.items() if m is not None or at in self.index.errors}

    def fill_in(self, found: Analysed) -> None:
        """Add what the answer depends on and where its events are, then forget sources that were not used lately."""
        used = {found.path: None, **{path: None for path in self.index.lookups.values() if path is not None}}
        faults = {str(error): error for error in found.errors}
        faults |= {str(self.index.errors[path]): self.index.errors[path] for path in used if path in self.index.errors}
        found.errors = tuple(faults.values())
        found.lookups = self.index.lookups
        found.digests = {path: self.digests[path] for path in used if path in self.digests}
        found.complete = found.complete and len(found.digests) == len(used)
        found.around = {
            (place.path, place.line): self.function_around(place.path, place.line)
            for ran in found.ran
            for place in (event.site.place for event in ran.events)
        }
        if found.path in self.index.modules:
            for path in self.index.keep(used, MAX_NUM_CHARACTERS):
                self.spans.pop(path, None)

    def function_around(self, path: Path, line: int) -> str:
        """The qualified name of the function around a line of a parsed file."""
        if path not in self.spans:
            module = self.index.load(path)
            self.spans[path] = spans_of(module.tree) if module is not None else []
        return enclosing(self.spans[path], line)


def ran(at: int, entry: Entry, outcome: Outcome) -> Ran:
    """The record of an entry and its outcome."""
    return Ran(
        EntryRecord(entry.path, entry.line, entry.name, entry.why),
        (at, str(entry.path), entry.line, entry.kind.value),
        tuple(outcome.events),
        outcome.exhausted,
    )


def without_outcomes(found: Analysed) -> Analysed:
    """The answer without what cannot leave the process: functions of the index."""
    return replace(found, outcomes=())


def described(fault: Exception) -> str:
    """What is said of a fault of the analyser: what it was and where, for whoever reports it."""
    where = traceback.extract_tb(fault.__traceback__)[-1]
    what = " ".join(f"{type(fault).__name__}: {fault}".split())
    return f"the analyser failed at {Path(where.filename).name}:{where.lineno}, {what}; please report this"


def check_syntax(text: str, path: Path) -> None:
    """Raise ``SourceError`` where a source cannot be parsed; quicker than to parse it into a tree."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            symtable.symtable(text, str(path), "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        parse(text, path)  # has the last word: a symbol table refuses more than a tree does


def named_entry(spec: str, index: Index) -> Entry:
    """The entry that MODULE:NAME names, run as what its file shows it to be. Raises ``UsageError``.

    What is given to the ``step`` of a protocol module is known from ``build`` and ``inputs`` whoever names it; a
    function around a capture is no recorded code. Only a guess becomes sure by being named.
    """
    module_name, _, name = spec.partition(":")
    module = named_module(spec, index)
    if module is None or not name:
        raise UsageError(f"{spec}: no module '{module_name}' in the checked paths; say MODULE:NAME")
    owner, _, method = name.rpartition(".")
    if owner:
        definition = module.classes.get(owner.rpartition(".")[2])
        function = definition.methods.get(method) if definition is not None else None
        if function is None and definition is not None:
            raise UsageError(f"{spec}: class '{owner}' in {module.path} defines no '{method}' itself")
    else:
        function = module.functions.get(name)
    if function is None:
        raise UsageError(f"{spec}: no function or method '{name}' in {module.path}")
    why = "named by --entry"
    shown = next(
        (entry for entry in find_entries(module, handing_over(module, index)) if entry.function is function), None
    )
    if shown is not None:
        return replace(shown, name=name, why=why, capped=False)
    return Entry(module.path, function.node.lineno, name, why, EntryKind.FUNCTION, module, function)


def named_module(spec: str, index: Index) -> Module | None:
    """The checked module, by its name or its file, that MODULE:NAME begins with."""
    name = spec.partition(":")[0]
    module = index.find(name)
    if module is None and name.endswith(".py"):
        found = next((path for path in index.names if str(path) == name), None)
        return index.load(found) if found is not None else None
    return module


def with_room(run: Callable[[], Analysed]) -> Analysed:
    """Run with room for all frames that calls in it need.

    CPython keeps frames in chunks of 16 kB, and maps and unmaps one whenever calls cross the end of the last (since
    3.11): a million times in a large run, a fifth of its time. A function that claims a large frame gets a large chunk,
    and what it calls has its frames in the rest of that chunk.
    """
    return run()


with_room.__code__ = with_room.__code__.replace(co_stacksize=STACK_SLOTS)


@contextmanager
def deep_calls() -> Iterator[None]:
    """Allow calls as deep as an analysis needs, and no deeper than before afterwards."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@contextmanager
def few_collections() -> Iterator[None]:
    """Look for garbage seldom and only among what is new: trees are millions of objects and never garbage.

    Forked workers inherit this, and share what is there until they write to it, which a collection would.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``OutOfTimeError`` after that much processor time; no limit where the system cannot interrupt a thread."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before if before is not None else signal.SIG_DFL)
