"""Why the target's own capture code gives wrong answers, in the order of what leaves no doubt.

First what the captured function does otherwise at a replay: numbers, shapes, calls, addresses. Then inputs that were
given other tensors, outputs that were written over, memory that was freed, writes by negative indices, copies whose
original was written; and where nothing of that is seen, state that warm-up left moved and rows that write one slot.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from capturelint.runtime.differences import StepTrace, frozen, unique
from capturelint.runtime.driven import ERRORS, DrivenRun, Taken
from capturelint.runtime.driver_outputs import held_outputs, lost_outputs, overwritten_outputs
from capturelint.runtime.eager import DEVICE
from capturelint.runtime.homes import address_of
from capturelint.runtime.hooks import Pending, hooked
from capturelint.runtime.lines import Store
from capturelint.runtime.liveness import Liveness, freed_memory
from capturelint.runtime.observations import Observation, Spot
from capturelint.runtime.project import Project
from capturelint.runtime.syntax import function_around, parsed
from capturelint.runtime.trace import Argument, Call
from capturelint.runtime.witness import AFTERMATH, REFUSALS, aftermath, first_line
from capturelint.vocabulary import ObservationKind

FOLLOWING = (ObservationKind.SHAPE_CHANGED, ObservationKind.TENSOR_CHANGED)
"""What a tensor of another shape in the place of the captured one looks like by itself."""

Driver = Callable[[str], object]


def watched_run(driver: Driver, project: Project) -> DrivenRun:
    """The driver once more, under the recorders; whatever it raises, they have seen what came before."""
    run = DrivenRun(project, differences)
    try:
        with run.watching(), run.log.recording(), run:
            driver(DEVICE)
            torch.cuda.synchronize()
    except ERRORS as error:
        run.raised = f"{type(error).__name__}: {first_line(error)}"
    return run


def looked_for(run: DrivenRun) -> str:
    """Why the recorders tell no cause, as far as that is known."""
    if run.raised:
        return f"under the recorders the driver raises {run.raised}"
    if not run.epochs:
        return "the recorders see no replay of a graph"
    if not any(taken.invocations for taken in run.captures):
        return "the capture is of no function that could be called again"
    return "the captured function, called again at each replay, does what it did, and nothing watched around it moved"


def refused_calls(run: DrivenRun) -> tuple[Observation, ...]:
    """The call of a capture that was refused, where the error that came out was a later one."""
    calls = [call for taken in run.all_captures for call in taken.recorder.calls]
    if not any(word in call.failed for call in calls for word in REFUSALS):
        return ()
    seen = aftermath(Observation(ObservationKind.REFUSED, AFTERMATH), calls)
    return (seen,) if seen.spots else ()


def causes(run: DrivenRun, driver: Driver, project: Project) -> list[Observation]:
    """Why a driver's answers are wrong, by the first look that sees anything; empty where none does."""
    looks: tuple[Callable[[], Iterable[Observation]], ...] = (
        lambda: run.found,
        lambda: unique(moved_inputs(run)),
        lambda: (*overwritten_outputs(run), *freed(driver, project), *wrapped_writes(run)),
        lambda: held_outputs(run),
        lambda: unique(lost_outputs(run)),
        lambda: unique(stale_copies(run)),
        lambda: run.varied,
        lambda: unique(advanced_state(run)),
        lambda: collided_writes(run),
        lambda: run.mixed,
        lambda: run.failures,
    )
    return next((found for look in looks if (found := list(look()))), [])


def freed(driver: Driver, project: Project) -> list[Observation]:
    """Memory that a graph reads and that is free at one of its replays."""
    watched: dict[int, Liveness] = {}
    made: set[int] = set()
    found: list[Observation] = []

    def begin(graph: object, call: Pending) -> object:
        began = call()
        watched[id(graph)] = Liveness(project, made)
        watched[id(graph)].__enter__()  # type: ignore[no-untyped-call]
        return began

    def end(graph: object, call: Pending) -> object:
        watched[id(graph)].__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return call()

    def replay(graph: object, call: Pending) -> object:
        if id(graph) in watched and not found:
            found.extend(freed_memory(watched[id(graph)].dead(), 0))
        return call()

    hooks = {"capture_begin": begin, "capture_end": end, "replay": replay}
    with hooked(torch.cuda.CUDAGraph, hooks), contextlib.suppress(*ERRORS):
        driver(DEVICE)
        torch.cuda.synchronize()
    return found


def differences(taken: Taken, later: StepTrace, stores: Sequence[Store]) -> list[Observation]:
    """What the captured function does otherwise in ``later``; empty where it does the same."""
    moved = moved_reads(taken, later, stores)
    found = frozen(taken.trace, later)
    is_recast = any(each.before != each.after for each in moved)
    if moved and (is_recast or all(each.kind in FOLLOWING for each in found)):
        # A tensor put in the place of the captured one is no growth of it and no choice of the step, and one of
        # another dtype is computed with by other calls.
        found = [each for each in moved if each.home] or found
    if found and found[0].kind is ObservationKind.CALL_CHANGED:
        made = [store for store in stores if store.slot.value is None and is_captured(store, taken)]
        return list(unique(made_in_capture(store, later.step) for store in made)) or found
    return list(unique(iter(found or moved)))


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
                seen = moved_read(taken, after, new, later.step, stores)
                found.append(replace(seen, before=old.dtype, after=new.dtype))
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


def stale_copies(run: DrivenRun) -> Iterator[Observation]:
    """Writes that reach the original of what a graph reads, and not the copy that it reads."""
    for behind in run.stale:
        yield Observation(
            ObservationKind.INPUT_MOVED,
            f"the graph reads what `{behind.copy.call}` made of the memory that `{behind.call}` writes, "
            "and nobody makes it again",
            behind.spots,
            call=behind.call,
        )


def wrapped_writes(run: DrivenRun) -> list[Observation]:
    """Writes by a negative index, which wraps around to memory that may be somebody's."""
    lines = dict.fromkeys(run.wrapped)
    text = "an index is negative when the graph is replayed, and wraps around to the last slots"
    return [Observation(ObservationKind.PADDING_LEAKED, text, spots) for spots in lines]


def collided_writes(run: DrivenRun) -> Iterator[Observation]:
    """Writes of several rows to one slot: what is there afterwards is one row's alone, which may be padding."""
    text = "rows write other values to one slot when the graph is replayed, and all but one are lost"
    for spots in dict.fromkeys(run.collided):
        yield Observation(ObservationKind.PADDING_LEAKED, text, spots)


def advanced_state(run: DrivenRun) -> Iterator[Observation]:
    """Memory that warm-up moved, that the graph moves too, and that nobody put back before the first replay."""
    written = {key for taken in run.captures for key in taken.recorder.written}
    functions = {function for taken in run.captures for function in taken.functions}
    left: dict[int, tuple[Spot, ...]] = {}
    past = [left]
    for write in run.before:
        spots = write.call.spots
        at = next((i for i, spot in enumerate(spots) if (spot.path, spot.name) in functions), None)
        left = dict(left)
        for key in write.keys & written:
            if at is not None:
                left.setdefault(key, down_to_name(spots[:at]))
            elif write.restored is None or key not in past[write.restored]:
                left.pop(key, None)
        past.append(left)
    for spots in left.values():
        text = "steps before the capture move state that the graph goes on from, and nobody rewinds it"
        yield Observation(ObservationKind.STATE_ADVANCED, text, spots)


def down_to_name(spots: tuple[Spot, ...]) -> tuple[Spot, ...]:
    """The lines down to the one that names what it calls: ``warm(step)``, and not the ``call()`` in ``warm``."""
    while len(spots) > 1 and calls_parameter(spots[-1]):
        spots = spots[:-1]
    return spots


def calls_parameter(spot: Spot) -> bool:
    """Whether a line calls what its function was given, whatever that is."""
    nodes = ast.walk(parsed(spot.path))
    called = [node.func for node in nodes if isinstance(node, ast.Call) and node.lineno == spot.line]
    around = function_around(spot.path, spot.line)
    given = around.args if around else None
    names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)} if given else set()
    return bool(called) and all(isinstance(each, ast.Name) and each.id in names for each in called)
