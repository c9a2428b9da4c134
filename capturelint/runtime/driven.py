"""A driver run again under recorders, with the step that it captured called eagerly in front of every replay.

The driver captures and replays as it did. The function that was captured is called with the arguments of the capture,
and what it wrote is put back: that is the later eager step which the captured calls are held against. What the driver
does in between is noted: slots that are given other tensors, reads of a replay's outputs, writes before the capture.

The surprise: a watched slot keeps what it held alive, so this run frees nothing that the driver frees.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType

import torch

from capturelint.runtime.copies import Behind, Copies
from capturelint.runtime.differences import StepTrace, frozen
from capturelint.runtime.driver_rows import Filled, Multiplied, Rows, mixed_rows
from capturelint.runtime.homes import Slot, address_of, homes, named_slots
from capturelint.runtime.hooks import Pending, hooked
from capturelint.runtime.indices import Indices
from capturelint.runtime.invocations import Change, Given, Invocation, changes, given
from capturelint.runtime.lines import Line, LineLog, Store
from capturelint.runtime.observations import Observation, Spot
from capturelint.runtime.project import Project
from capturelint.runtime.rewind import owner_of
from capturelint.runtime.rows import Results
from capturelint.runtime.states import RandomState
from capturelint.runtime.trace import Call, Recorder, Watch, each_tensor, is_view, key_of, short_name
from capturelint.runtime.witness import first_line
from capturelint.vocabulary import ObservationKind

MAX_SLOTS = 2000
ERRORS = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, AssertionError)
FILLS = ("copy_", "fill_", "zero_")
"""Calls that write all of their first tensor without reading it."""


@dataclass(slots=True)
class Taken:
    """One graph's capture: its calls and lines, the calls of the target's functions it was made of, its memory."""

    graph: object
    depth: int
    base: int
    first_line: int
    recorder: Recorder
    invocations: list[Invocation] = field(default_factory=list)
    frames: set[int] = field(default_factory=set)
    lines: tuple[Line, ...] = ()
    homes: dict[int, str] = field(default_factory=dict)
    kept: list[torch.Tensor] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    given: Given = field(default_factory=dict)

    @property
    def trace(self) -> StepTrace:
        """What the graph repeats of the functions that it was captured from, which are called again."""
        calls = tuple(call for call in self.recorder.calls if len(call.spots) > self.depth)
        return StepTrace(0, calls, self.lines, self.homes)

    @property
    def memory(self) -> set[int]:
        """The storages that a replay writes."""
        return self.recorder.made | self.recorder.written.keys()

    @property
    def functions(self) -> set[tuple[str, str]]:
        """File and name of the functions that the capture went through."""
        return {(spot.path, spot.name) for call in self.recorder.calls for spot in call.spots[self.depth :]}


@dataclass(frozen=True, slots=True)
class Write:
    """A call that wrote ``keys`` before the first replay; ``restored``: it put back what was there after that many."""

    call: Call
    keys: frozenset[int]
    restored: int | None


@dataclass(slots=True)
class Epoch:
    """What happened between one replay and the next; ``read`` is what of the graph's memory calls were given.

    ``way`` holds function and instruction of each of the frames in ``spots``.
    """

    taken: Taken
    spots: tuple[Spot, ...]
    first_line: int
    way: tuple[tuple[str, int], ...] = ()
    read: set[int] = field(default_factory=set)

    @property
    def is_read(self) -> bool:
        """Whether anybody looked at what the graph made."""
        return bool(self.read & self.taken.recorder.made)


@dataclass(frozen=True, slots=True)
class Holder:
    """A place that holds what a graph writes, the class of the object that has it, and the replay that it is of."""

    name: str
    kind: str
    epoch: Epoch


Differences = Callable[[Taken, StepTrace, Sequence[Store]], list[Observation]]
"""What explains that a later eager step is not what was captured, with the stores to the watched slots so far."""


class DrivenRun(Watch):  # type: ignore[no-untyped-call]
    """One run of a driver, watched; ``found`` is what the first replay that shows a cause tells."""

    def __init__(self, project: Project, differences: Differences) -> None:
        super().__init__(project)
        self.differences = differences
        self.log = LineLog(project, keeps=True)
        self.capturing: Taken | None = None
        self.captures: list[Taken] = []
        self.epochs: list[Epoch] = []
        self.repeated: Counter[int] = Counter()
        self.before: list[Write] = []
        self.found: list[Observation] = []
        self.wrapped: tuple[tuple[Spot, ...], ...] = ()
        self.collided: tuple[tuple[Spot, ...], ...] = ()
        self.holders: dict[int, set[str]] = {}
        self.kept: list[Holder] = []
        self.quiet = False
        self.failures: list[Observation] = []
        self.copies = Copies()
        self.stale: list[Behind] = []
        self.varied: list[Observation] = []
        self.filled = Filled()
        self.mixed: list[Observation] = []
        self.raised = ""

    @property
    def all_captures(self) -> list[Taken]:
        """The captures, one that was never ended with them."""
        return [*self.captures, *([self.capturing] if self.capturing is not None else [])]

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the call, and note it where it belongs: to a capture, or to what the driver does around it."""
        kwargs = kwargs or {}
        if self.capturing is not None:
            self.note_invocation(self.capturing, sys._getframe(1))
            tensors = list(each_tensor((args, kwargs)))
            self.capturing.read.update(map(key_of, tensors[short_name(str(func)) in FILLS :]))
            with self.capturing.recorder:
                result = func(*args, **kwargs)
            self.capturing.kept += each_tensor(result)
            return result
        if self.quiet:
            return func(*args, **kwargs)
        if not is_view(func):
            self.note_reads(args, kwargs)
        recorder = Recorder(self.project)
        with recorder:
            result = func(*args, **kwargs)
        if not recorder.calls:
            return result
        self.filled.note(list(recorder.written.values()))
        if recorder.written and not self.epochs:
            restored = self.copies.restored(recorder.calls[-1], args, len(self.before))
            self.before.append(Write(recorder.calls[-1], frozenset(recorder.written), restored))
        self.copies.note(recorder.calls[-1], (args, kwargs), result, list(recorder.written.values()), len(self.before))
        return result

    def note_invocation(self, taken: Taken, frame: FrameType) -> None:
        """Remember the target's function that was called in the region of the capture."""
        frames = project_frames(self.project, frame)
        if len(frames) <= taken.depth or id(frames[taken.depth]) in taken.frames:
            return
        entry = frames[taken.depth]
        taken.frames.add(id(entry))
        taken.invocations.append(Invocation(entry.f_code, entry.f_globals, dict(entry.f_locals)))

    def note_reads(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Whether a call reads what the last replay wrote."""
        if not self.epochs:
            return
        taken = self.epochs[-1].taken
        seen = [key_of(tensor) for tensor in each_tensor((args, kwargs))]
        self.epochs[-1].read |= taken.memory.intersection(seen)
        keys = [key for key in seen if key in taken.recorder.made]
        self.repeated.update(key for key, times in Counter(keys).items() if times > 1)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note captures and replays of every graph while entered."""

        def begin(graph: object, call: Pending) -> object:
            began = call()
            self.begin(graph, sys._getframe())
            return began

        def end(graph: object, call: Pending) -> object:
            self.end()
            return call()

        def replay(graph: object, call: Pending) -> object:
            try:
                self.replay(graph, sys._getframe())
                launched = call()
                torch.cuda.synchronize()
            except ERRORS as error:
                self.failures.append(self.failed_replay(error, sys._getframe()))
                raise
            return launched

        hooks = {"capture_begin": begin, "capture_end": end, "replay": replay}
        with hooked(torch.cuda.CUDAGraph, hooks), hooked(threading.Thread, {"start": self.watch_thread}):
            yield

    def watch_thread(self, thread: threading.Thread, call: Pending) -> object:
        """Start a thread that is watched as this one is: modes and line tracers belong to a thread."""
        run = thread.run

        def watched() -> None:
            with self.log.recording(), self:
                run()

        thread.run = watched  # type: ignore[method-assign]
        return call()

    def begin(self, graph: object, frame: FrameType) -> None:
        """A capture starts in ``frame``."""
        frames = project_frames(self.project, frame)
        self.capturing = Taken(graph, len(frames), self.log.depth, len(self.log.lines), Recorder(self.project))
        self.capturing.given = given(frames)
        self.log.watched += slots_of(frames)
        self.copies.captured()

    def end(self) -> None:
        """The capture is over: from here on only slots that the graphs read are watched."""
        taken, self.capturing = self.capturing, None
        if taken is None:
            return
        self.log.look_at_slots()
        lines = self.log.lines[taken.first_line :]
        taken.lines = tuple(replace(each, depth=each.depth - taken.base) for each in lines if each.depth > taken.base)
        for invocation in taken.invocations:
            for name, value in invocation.values.items():
                taken.homes |= {home.tensor.data_ptr(): home.name for home in homes(value, name)}
        self.captures.append(taken)
        read = {each.address for other in self.captures for call in other.recorder.calls for each in call.tensors}
        self.log.watched[:] = [
            slot for slot in self.log.watched if isinstance(slot.value, torch.Tensor) and address_of(slot.value) in read
        ]

    def replay(self, graph: object, frame: FrameType) -> None:
        """A replay is about to start in ``frame``: what would an eager step do?"""
        taken = next((each for each in reversed(self.captures) if each.graph is graph), None)
        if taken is None:
            return
        self.log.look_at_slots()
        if not self.found:
            self.found = self.compare(taken)
        # What graphs write by themselves is state and no copy of anything.
        written = {key for each in self.captures for key in each.recorder.written}
        self.stale += [behind for key, behind in self.copies.behind.items() if key in taken.read - written]
        frames = project_frames(self.project, frame)
        if not self.found and not self.varied:
            self.varied = self.compare_given(taken, changes(taken.given, given(frames)))
        if not self.found and not self.mixed:
            self.mixed = self.compare_rows(taken, self.filled.of(taken.read))
        self.filled.rows.clear()
        self.note_holders(taken, frames)
        way = tuple((each.f_code.co_name, each.f_lasti) for each in frames)
        self.epochs.append(Epoch(taken, self.project.spots(frame), len(self.log.lines), way))

    def failed_replay(self, error: BaseException, frame: FrameType) -> Observation:
        """A replay, or the eager step in front of it, that raises: it is waited for, so that its error comes here."""
        message = f"the captured step fails at replay {len(self.epochs)}: {type(error).__name__}: {first_line(error)}"
        return Observation(ObservationKind.VALUES_DIFFER, message, self.project.spots(frame))

    def note_holders(self, taken: Taken, frames: Sequence[FrameType]) -> None:
        """Attributes and items that hold what the graph writes, and did not at the replay before."""
        memory = taken.memory
        holding = {
            slot.name: type(owner_of(slot)).__name__
            for slot in slots_of(frames)
            if not slot.name.isidentifier() and isinstance(slot.value, torch.Tensor) and key_of(slot.value) in memory
        }
        known = self.holders.setdefault(id(taken), set(holding))
        self.kept += [Holder(name, holding[name], self.epochs[-1]) for name in sorted(holding.keys() - known)]
        known |= holding.keys()

    def compare(self, taken: Taken) -> list[Observation]:
        """What the captured function does otherwise by now; empty where it does the same."""
        recorder = Indices(self.project)
        later = self.eager_step(taken, len(self.epochs), recorder)
        if later is None:
            return []
        self.wrapped = self.wrapped or tuple(recorder.wrapped)
        self.collided = self.collided or tuple(recorder.collided)
        return self.differences(taken, later, self.log.stores)

    def compare_given(self, taken: Taken, changed: list[Change]) -> list[Observation]:
        """What the captured function does otherwise with what the functions around it hold by now."""
        taken_up = [each for each in changed if any(invocation.takes(each) for invocation in taken.invocations)]
        later = self.eager_step(taken, len(self.epochs), Recorder(self.project), taken_up) if taken_up else None
        if later is None:
            return []
        said = "; ".join(each.words for each in taken_up)
        kinds = {ObservationKind.CALL_CHANGED: ObservationKind.BRANCH_CHANGED}
        return [
            replace(each, text=f"{each.text}; {said}", kind=kinds.get(each.kind, each.kind), sure=False)
            for each in frozen(taken.trace, later)
        ]

    def compare_rows(self, taken: Taken, filled: Mapping[int, Rows]) -> list[Observation]:
        """Where the captured function lets the rows that the driver did not fill reach the others."""
        for rows in list(filled.values())[:1]:
            usual, other = Results(self.project), Multiplied(self.project, filled.keys(), rows)
            if self.rerun(taken, usual) is not None and self.rerun(taken, other) is not None:
                return mixed_rows(usual, other)
        return []

    def eager_step(
        self, taken: Taken, step: int, recorder: Recorder, changed: Sequence[Change] = ()
    ) -> StepTrace | None:
        """The captured function called again under ``recorder``, with nothing left of it."""
        named = {
            home.tensor.data_ptr(): home.name
            for invocation in taken.invocations
            for name, value in invocation.values.items()
            for home in homes(value, name)
        }
        lines = self.rerun(taken, recorder, changed)
        return None if lines is None else StepTrace(step, tuple(recorder.calls), lines, named)

    def rerun(self, taken: Taken, mode: Watch, changed: Sequence[Change] = ()) -> tuple[Line, ...] | None:
        """The lines of the captured function called again under ``mode``; ``None`` where it cannot be."""
        if not taken.invocations:
            return None
        base, first = self.log.depth, len(self.log.lines)
        watched, self.log.watched, self.quiet = self.log.watched, [], True
        randomness = RandomState.now()
        outside = (tensor for key, tensor in taken.recorder.written.items() if key not in taken.recorder.made)
        saved = [(tensor, tensor.clone()) for tensor in outside]
        try:
            with torch.no_grad(), mode:
                for invocation in taken.invocations:
                    invocation.again(changed)
        except ERRORS:
            return None
        finally:
            randomness.restore()
            with torch.inference_mode():
                for tensor, copy in saved:
                    tensor.copy_(copy)
            self.log.watched, self.quiet = watched, False
        return tuple(replace(each, depth=each.depth - base) for each in self.log.lines[first:] if each.depth > base)


def project_frames(project: Project, frame: FrameType | None) -> list[FrameType]:
    """The target's frames, entry first."""
    found = []
    while frame is not None:
        if project.owns(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


def slots_of(frames: Sequence[FrameType]) -> list[Slot]:
    """Every place that the target's frames can reach which holds a tensor or nothing, the names of locals included."""
    wanted = (torch.Tensor, type(None))
    found = [slot for frame in frames for slot in named_slots(frame, dict(frame.f_locals), wanted)]
    # Layers hold None where they have no bias: what holds a tensor goes first.
    return sorted(found, key=lambda slot: slot.value is None)[:MAX_SLOTS]
