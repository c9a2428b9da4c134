"""Why the target's own capture code gives wrong answers: the driver again, under recorders, with its step beside it.

The driver captures and replays as it did. In front of every replay the function that was captured is also called
eagerly, with the arguments of the capture, and what it wrote is put back: that is the later eager step which the
captured calls are held against. What the driver does in between is watched: slots that are given other tensors,
outputs that nobody reads before they are overwritten, state that warm-up left moved.

The surprise: a watched slot keeps what it held alive. So memory that the driver frees is looked for in a run of its
own, in which nothing is held.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from capturelint.runtime.differences import StepTrace, frozen, unique
from capturelint.runtime.eager import DEVICE
from capturelint.runtime.homes import Slot, homes, walk
from capturelint.runtime.lines import Line, LineLog, Store
from capturelint.runtime.liveness import Liveness, freed_memory
from capturelint.runtime.observations import Observation, Spot
from capturelint.runtime.project import Project
from capturelint.runtime.states import RandomState
from capturelint.runtime.trace import Argument, Call, Recorder, each_tensor, key_of
from capturelint.vocabulary import ObservationKind

MAX_SLOTS = 2000
ERRORS = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, AssertionError)
WRITES = ("index_put_", "_index_put_impl_", "index_copy_", "index_add_", "scatter_", "scatter_add_")
KEEPING = {"append", "appendleft", "extend", "insert", "add", "put", "setdefault", "update"}
Driver = Callable[[str], object]


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

    @property
    def trace(self) -> StepTrace:
        """What the graph repeats."""
        return StepTrace(0, tuple(self.recorder.calls), self.lines, self.homes)

    @property
    def functions(self) -> set[tuple[str, str]]:
        """File and name of the functions that the capture went through."""
        return {(spot.path, spot.name) for call in self.recorder.calls for spot in call.spots[self.depth :]}


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of a function of the target, to be made again."""

    code: types.CodeType
    scope: dict[str, Any]
    values: Mapping[str, object]

    def again(self) -> None:
        """Call the function with the arguments that it had."""
        cells = tuple(types.CellType(self.values.get(name)) for name in self.code.co_freevars)
        function = types.FunctionType(self.code, self.scope, self.code.co_name, None, cells)
        names = self.code.co_varnames
        count = self.code.co_argcount
        positional = [self.values[name] for name in names[:count]]
        by_name = {name: self.values[name] for name in names[count : count + self.code.co_kwonlyargcount]}
        more = count + self.code.co_kwonlyargcount
        if self.code.co_flags & 0x04:  # *args
            rest = self.values[names[more]]
            positional += list(rest) if isinstance(rest, tuple) else []
            more += 1
        if self.code.co_flags & 0x08:  # **kwargs
            extra = self.values[names[more]]
            by_name |= extra if isinstance(extra, dict) else {}
        function(*positional, **by_name)


@dataclass(slots=True)
class Epoch:
    """What happened between one replay and the next."""

    taken: Taken
    spots: tuple[Spot, ...]
    first_line: int
    reads: int = 0


class DrivenRun(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One run of a driver, watched; ``found`` is what the first replay that shows a cause tells."""

    def __init__(self, project: Project) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.project = project
        self.log = LineLog(project, keeps=True)
        self.capturing: Taken | None = None
        self.captures: list[Taken] = []
        self.epochs: list[Epoch] = []
        self.repeated: Counter[int] = Counter()
        self.before: list[tuple[Call, frozenset[int]]] = []
        self.found: list[Observation] = []
        self.wrapped: tuple[tuple[Spot, ...], ...] = ()
        self.quiet = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare the worker the import of the compiler (2.6 s), which never sees this mode."""
        return False

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
            with self.capturing.recorder:
                result = func(*args, **kwargs)
            self.capturing.kept += each_tensor(result)
            return result
        if self.quiet:
            return func(*args, **kwargs)
        self.note_reads(args, kwargs)
        recorder = Recorder(self.project)
        with recorder:
            result = func(*args, **kwargs)
        if recorder.written and not self.epochs:
            self.before.append((recorder.calls[-1], frozenset(recorder.written)))
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
        made = self.epochs[-1].taken.recorder.made
        keys = [key for tensor in each_tensor((args, kwargs)) if (key := key_of(tensor)) in made]
        self.epochs[-1].reads += bool(keys)
        self.repeated.update(key for key, times in Counter(keys).items() if times > 1)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note captures and replays of every graph while entered."""
        graph = torch.cuda.CUDAGraph
        begin, end, launch = graph.capture_begin, graph.capture_end, graph.replay
        run = self

        @functools.wraps(begin)
        def noted_begin(self_: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signature
            began = begin(self_, *args, **kwargs)
            run.begin(self_, sys._getframe(1))
            return began

        @functools.wraps(end)
        def noted_end(self_: Any) -> Any:  # noqa: ANN401 - torch's own signature
            run.end()
            return end(self_)

        @functools.wraps(launch)
        def noted_replay(self_: Any) -> Any:  # noqa: ANN401 - torch's own signature
            run.replay(self_, run.project.spots(sys._getframe(1)))
            return launch(self_)

        with patched(graph, {"capture_begin": noted_begin, "capture_end": noted_end, "replay": noted_replay}):
            yield

    def begin(self, graph: object, frame: FrameType) -> None:
        """A capture starts in ``frame``."""
        frames = project_frames(self.project, frame)
        self.capturing = Taken(graph, len(frames), self.log.depth, len(self.log.lines), Recorder(self.project))
        self.log.watched += slots_of(frames)

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

    def replay(self, graph: object, spots: tuple[Spot, ...]) -> None:
        """A replay is about to start: what would an eager step do?"""
        taken = next((each for each in reversed(self.captures) if each.graph is graph), None)
        if taken is None:
            return
        self.log.look_at_slots()
        if not self.found:
            self.found = self.compare(taken)
        self.epochs.append(Epoch(taken, spots, len(self.log.lines)))

    def compare(self, taken: Taken) -> list[Observation]:
        """What the captured function does otherwise by now; empty where it does the same."""
        step = len(self.epochs)
        later, wrapped = self.eager_step(taken, step)
        if later is None:
            return []
        self.wrapped = self.wrapped or wrapped
        moved = moved_reads(taken, later, self.log.stores)
        found = frozen(taken.trace, later)
        if moved and all(each.kind is ObservationKind.SHAPE_CHANGED for each in found):
            # A tensor of another size in the place of the captured one is no growth of it.
            found = [each for each in moved if each.home] or found
        if found and found[0].kind is ObservationKind.CALL_CHANGED:
            made = [store for store in self.log.stores if store.slot.value is None and is_captured(store, taken)]
            return list(unique(made_in_capture(store, step) for store in made)) or found
        return list(unique(iter(found or moved)))

    def eager_step(self, taken: Taken, step: int) -> tuple[StepTrace | None, tuple[tuple[Spot, ...], ...]]:
        """The captured function called again, with nothing left of it; and lines that write by negative indices."""
        if not taken.invocations:
            return None, ()
        recorder, base, first = Indices(self.project), self.log.depth, len(self.log.lines)
        watched, self.log.watched, self.quiet = self.log.watched, [], True
        named = {
            home.tensor.data_ptr(): home.name
            for invocation in taken.invocations
            for name, value in invocation.values.items()
            for home in homes(value, name)
        }
        randomness = RandomState.now()
        outside = (tensor for key, tensor in taken.recorder.written.items() if key not in taken.recorder.made)
        saved = [(tensor, tensor.clone()) for tensor in outside]
        try:
            with torch.no_grad(), recorder:
                for invocation in taken.invocations:
                    invocation.again()
        except ERRORS:
            return None, ()
        finally:
            randomness.restore()
            with torch.inference_mode():
                for tensor, copy in saved:
                    tensor.copy_(copy)
            self.log.watched, self.quiet = watched, False
        lines = [replace(each, depth=each.depth - base) for each in self.log.lines[first:] if each.depth > base]
        return StepTrace(step, tuple(recorder.calls), tuple(lines), named), tuple(recorder.wrapped)


class Indices(Recorder):  # type: ignore[no-untyped-call]
    """A recorder that also looks at the indices that a call writes by; only for steps that nobody captures."""

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.wrapped: list[tuple[Spot, ...]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the call and note a negative index."""
        if str(func).split(".")[1] in WRITES:
            indices = [each for each in each_tensor(args[1:]) if each.dtype in (torch.int64, torch.int32)]
            if any(bool((each < 0).any()) for each in indices):
                self.wrapped.append(self.project.spots(sys._getframe(1)))
        return super().__torch_dispatch__(func, types, args, kwargs)


def causes(driver: Driver, project: Project) -> list[Observation]:
    """Why a driver's answers are wrong; empty where the recorders see nothing that explains it."""
    run = DrivenRun(project)
    with contextlib.suppress(*ERRORS), run.watching(), run.log.recording(), run:
        driver(DEVICE)
        torch.cuda.synchronize()
    if run.found:
        return run.found
    if moved := list(unique(moved_inputs(run))):
        return moved
    found = [*overwritten_outputs(run), *freed(driver, project), *wrapped_writes(run)]
    return found or list(unique(advanced_state(run)))


def freed(driver: Driver, project: Project) -> list[Observation]:
    """Memory that a graph reads and that is free at one of its replays."""
    graph = torch.cuda.CUDAGraph
    begin, end, launch = graph.capture_begin, graph.capture_end, graph.replay
    watched: dict[int, Liveness] = {}
    found: list[Observation] = []

    def noted_begin(self_: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signature
        began = begin(self_, *args, **kwargs)
        watched[id(self_)] = Liveness(project)
        watched[id(self_)].__enter__()  # type: ignore[no-untyped-call]
        return began

    def noted_end(self_: Any) -> Any:  # noqa: ANN401 - torch's own signature
        watched[id(self_)].__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return end(self_)

    def noted_replay(self_: Any) -> Any:  # noqa: ANN401 - torch's own signature
        if id(self_) in watched and not found:
            found.extend(freed_memory(watched[id(self_)].dead(), 0))
        return launch(self_)

    noted = {"capture_begin": noted_begin, "capture_end": noted_end, "replay": noted_replay}
    with patched(graph, noted), contextlib.suppress(*ERRORS):
        driver(DEVICE)
        torch.cuda.synchronize()
    return found


@contextmanager
def patched(owner: type, methods: Mapping[str, Callable[..., object]]) -> Iterator[None]:
    """Methods replaced while entered."""
    originals = {name: getattr(owner, name) for name in methods}
    for name, method in methods.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


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
    found: list[Slot] = []
    for frame in frames:
        for name, value in list(frame.f_locals.items()):
            places = [
                (name, (name,), value),
                *((label, (name, *keys), held) for label, keys, held in walk(value, name)),
            ]
            found += [
                Slot(label, frame, keys, held)
                for label, keys, held in places
                if held is None or isinstance(held, torch.Tensor)
            ]
    # Layers hold None where they have no bias: what holds a tensor goes first.
    return sorted(found, key=lambda slot: slot.value is None)[:MAX_SLOTS]


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor starts; 0 without storage."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def is_captured(store: Store, taken: Taken) -> bool:
    """Whether a slot was filled by lines of a capture."""
    if not isinstance(store.after, torch.Tensor) or not store.spots:
        return False
    return any((line.path, line.line) == (store.spots[-1].path, store.spots[-1].line) for line in taken.lines)


def made_in_capture(store: Store, step: int) -> Observation:
    """A buffer that the captured step made, as it found none; no later step makes it again."""
    return Observation(
        ObservationKind.ADDRESS_CHANGED,
        f"`{store.slot.name}` was made while the step was captured, and is made again by every replay",
        store.spots,
        step=step,
        before="None",
        home=store.slot.name,
    )


def moved_reads(taken: Taken, later: StepTrace, stores: Sequence[Store]) -> list[Observation]:
    """Tensors from before the step that a later eager step reads at another address than the graph does."""
    made: set[int] = set()
    found = []
    for before, after in zip(taken.trace.calls, later.calls, strict=False):
        if before.name != after.name:
            break
        for old, new in zip(before.tensors, after.tensors, strict=False):
            if old.address != new.address and not made & {old.address, new.address} and is_on_device(new):
                found.append(moved_read(taken, after, new, later.step, stores))
        made |= {each.address for each in (*before.outputs, *after.outputs)}
    return found


def is_on_device(argument: Argument) -> bool:
    """Whether a tensor's memory is the device's."""
    return argument.device.startswith("cuda") and argument.address != 0


def moved_read(taken: Taken, call: Call, new: Argument, step: int, stores: Sequence[Store]) -> Observation:
    """One such tensor, at the line that stored it where that was seen, else at the line that reads it.

    What the step itself stores is its state; what the code around it stores is an input.
    """
    store = next(
        (
            each
            for each in reversed(stores)
            if isinstance(each.after, torch.Tensor) and address_of(each.after) == new.address and each.spots
        ),
        None,
    )
    name = f"`{store.slot.name}`" if store else f"the tensor of shape {list(new.shape)} that `{call.short}` reads"
    is_input = store is not None and not any((spot.path, spot.name) in taken.functions for spot in store.spots)
    return Observation(
        ObservationKind.INPUT_MOVED if is_input else ObservationKind.ADDRESS_CHANGED,
        f"{name} is another tensor before replay {step} than at capture",
        store.spots if store else call.spots,
        step=step,
        call=call.short,
        home=store.slot.name if store else "",
    )


def moved_inputs(run: DrivenRun) -> Iterator[Observation]:
    """Names and attributes that held what a graph reads and were given another tensor."""
    for store in run.log.stores:
        if isinstance(store.slot.value, torch.Tensor) and isinstance(store.after, torch.Tensor) and store.spots:
            yield Observation(
                ObservationKind.INPUT_MOVED,
                f"`{store.slot.name}` is given another tensor, and the graph goes on reading the one of the capture",
                store.spots,
                home=store.slot.name,
            )


def overwritten_outputs(run: DrivenRun) -> list[Observation]:
    """Outputs that nobody read before the next replay of their graph, and that were read several at once later."""
    unread = [
        epoch
        for epoch, after in zip(run.epochs, run.epochs[1:], strict=False)
        if not epoch.reads and epoch.taken is after.taken
    ]
    if not unread or not run.repeated:
        return []
    text = f"{len(unread) + 1} replays write one output, which is read only after the last of them"
    return [Observation(ObservationKind.OUTPUT_OVERWRITTEN, text, keeping(unread[0], run.log.lines), step=1)]


def keeping(epoch: Epoch, lines: Sequence[Line]) -> tuple[Spot, ...]:
    """The lines down to the one that keeps what a replay gave.

    That is the innermost statement around the replay that stores into a container, else the first one after it.
    """
    spots = epoch.spots
    for at in range(len(spots), 0, -1):
        if is_keeping(spots[at - 1]):
            return spots[:at]
    after = (Spot(line.path, line.line, "") for line in lines[epoch.first_line :])
    found = next((spot for spot in after if is_keeping(spot)), None)
    return spots[:1] if found is None else (found,)


def is_keeping(spot: Spot) -> bool:
    """Whether the statement at a line puts something into a container."""
    for node in ast.walk(parsed(spot.path)):
        if getattr(node, "lineno", 0) != spot.line:
            continue
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) if name in KEEPING:
                return True
            case ast.Assign(targets=[ast.Subscript(), *_]) | ast.AugAssign(value=ast.List()):
                return True
            case ast.ListComp() | ast.DictComp() | ast.GeneratorExp() | ast.Yield():
                return True
    return False


@functools.cache
def parsed(path: str) -> ast.Module:
    """A source file's tree; an empty one where it cannot be read."""
    try:
        with open(path, "rb") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def wrapped_writes(run: DrivenRun) -> list[Observation]:
    """Writes by a negative index, which wraps around to memory that may be somebody's."""
    lines = dict.fromkeys(run.wrapped)
    text = "an index is negative when the graph is replayed, and wraps around to the last slots"
    return [Observation(ObservationKind.PADDING_LEAKED, text, spots) for spots in lines]


def advanced_state(run: DrivenRun) -> Iterator[Observation]:
    """Memory that warm-up moved, that the graph moves too, and that nobody put back before the first replay."""
    written = {key for taken in run.captures for key in taken.recorder.written}
    functions = {function for taken in run.captures for function in taken.functions}
    left: dict[int, tuple[Spot, ...]] = {}
    for call, keys in run.before:
        at = next((i for i, spot in enumerate(call.spots) if (spot.path, spot.name) in functions), None)
        for key in keys & written:
            if at is None:
                left.pop(key, None)
            else:
                left.setdefault(key, call.spots[:at])
    for spots in left.values():
        text = "steps before the capture move state that the graph goes on from, and nobody rewinds it"
        yield Observation(ObservationKind.STATE_ADVANCED, text, spots)
