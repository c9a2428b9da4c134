"""Why the target's own capture code gives wrong answers, in the order of what leaves no doubt.

First what the captured function does otherwise at a replay: numbers, shapes, calls, addresses. Then inputs that were
given other tensors, outputs that were overwritten unread, memory that was freed, writes by negative indices; and where
nothing of that is seen, state that warm-up left moved.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from capturelint.runtime.differences import StepTrace, frozen, unique
from capturelint.runtime.driven import ERRORS, DrivenRun, Epoch, Taken
from capturelint.runtime.eager import DEVICE
from capturelint.runtime.homes import address_of
from capturelint.runtime.lines import Line, Store
from capturelint.runtime.liveness import Liveness, freed_memory
from capturelint.runtime.observations import Observation, Spot
from capturelint.runtime.patched import patched
from capturelint.runtime.project import Project
from capturelint.runtime.syntax import parsed
from capturelint.runtime.trace import Argument, Call
from capturelint.runtime.witness import AFTERMATH, REFUSALS, aftermath
from capturelint.vocabulary import ObservationKind

KEEPING = {"append", "appendleft", "extend", "insert", "add", "put", "setdefault", "update"}
Driver = Callable[[str], object]


def watched_run(driver: Driver, project: Project) -> DrivenRun:
    """The driver once more, under the recorders; whatever it raises, they have seen what came before."""
    run = DrivenRun(project, differences)
    with contextlib.suppress(*ERRORS), run.watching(), run.log.recording(), run:
        driver(DEVICE)
        torch.cuda.synchronize()
    return run


def refused_calls(run: DrivenRun) -> tuple[Observation, ...]:
    """The call of a capture that was refused, where the error that came out was a later one."""
    calls = [call for taken in run.all_captures for call in taken.recorder.calls]
    if not any(word in call.failed for call in calls for word in REFUSALS):
        return ()
    seen = aftermath(Observation(ObservationKind.REFUSED, AFTERMATH), calls)
    return (seen,) if seen.spots else ()


def causes(run: DrivenRun, driver: Driver, project: Project) -> list[Observation]:
    """Why a driver's answers are wrong; empty where the recorders see nothing that explains it."""
    if run.found:
        return run.found
    if moved := list(unique(moved_inputs(run))):
        return moved
    found = [*overwritten_outputs(run), *freed(driver, project), *wrapped_writes(run)]
    return found or held_outputs(run) or list(unique(advanced_state(run))) or run.failures


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


def differences(taken: Taken, later: StepTrace, stores: Sequence[Store]) -> list[Observation]:
    """What the captured function does otherwise in ``later``; empty where it does the same."""
    moved = moved_reads(taken, later, stores)
    found = frozen(taken.trace, later)
    if moved and all(each.kind in (ObservationKind.SHAPE_CHANGED, ObservationKind.TENSOR_CHANGED) for each in found):
        # A tensor put in the place of the captured one is no growth of it and no choice of the step.
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


def held_outputs(run: DrivenRun) -> list[Observation]:
    """An attribute or an item that was given an output and still holds it when the graph writes it again."""
    if not run.kept:
        return []
    name, epoch = run.kept[0]
    lines = (Spot(line.path, line.line, "") for line in run.log.lines[epoch.first_line :])
    stored = next((spot for spot in lines if stores_into(spot, name)), None)
    text = f"`{name}` holds the output of a replay while the next one writes over it"
    return [Observation(ObservationKind.OUTPUT_OVERWRITTEN, text, (stored,) if stored else epoch.spots[:1], home=name)]


def stores_into(spot: Spot, name: str) -> bool:
    """Whether the statement at a line assigns to what is called ``name``, or to an item of it."""
    return any(
        isinstance(node, ast.Assign)
        and node.lineno == spot.line
        and any(last_name(ast.unparse(target)) == last_name(name) for target in node.targets)
        for node in ast.walk(parsed(spot.path))
    )


def last_name(path: str) -> str:
    """``cache`` for ``self.layers[2].cache["k"]``."""
    return re.sub(r"\[[^\]]*\]", "", path).rsplit(".", 1)[-1]


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
