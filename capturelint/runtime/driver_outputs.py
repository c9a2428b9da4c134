"""Outputs of a driver's replays that were written over: unread, kept where nothing copies them, or by another graph."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

from capturelint.runtime.driven import DrivenRun, Epoch, Holder
from capturelint.runtime.lines import Line
from capturelint.runtime.observations import Observation, Spot
from capturelint.runtime.syntax import function_around, parsed
from capturelint.vocabulary import ObservationKind

KEEPING = {"append", "appendleft", "extend", "insert", "add", "put", "put_nowait", "set_result", "setdefault", "update"}


def overwritten_outputs(run: DrivenRun) -> list[Observation]:
    """Outputs that nobody read before the next replay of their graph, and that were read several at once later."""
    unread = [
        epoch
        for epoch, after in zip(run.epochs, run.epochs[1:], strict=False)
        if not epoch.is_read and epoch.taken is after.taken
    ]
    if not unread or not run.repeated:
        return []
    text = f"{len(unread) + 1} replays write one output, which is read only after the last of them"
    after = run.epochs[run.epochs.index(unread[0]) + 1]
    spots = up_to_parting(unread[0], after) or stored(run, unread[0], stores_into) or keeping(unread[0], run.log.lines)
    return [Observation(ObservationKind.OUTPUT_OVERWRITTEN, text, spots, step=1)]


def held_outputs(run: DrivenRun) -> list[Observation]:
    """An attribute or an item that was given an output and still holds it when the graph writes it again."""
    if not run.kept:
        return []
    first = run.kept[0]
    text = f"`{first.name}` holds the output of a replay while the next one writes over it"
    spots = stored(run, first.epoch, stores_into) or stored(run, first.epoch, makes) or first.epoch.spots[:1]
    return [Observation(ObservationKind.OUTPUT_OVERWRITTEN, text, spots, home=first.name)]


def stored(run: DrivenRun, epoch: Epoch, stores: Callable[[Spot, Holder], bool]) -> tuple[Spot, ...]:
    """The line that stored a replay's output where something holds it; none where nothing is seen to."""
    holders = [each for each in run.kept if each.epoch is epoch]
    lines = (Spot(line.path, line.line, "") for line in run.log.lines[epoch.first_line :])
    return next(((spot,) for spot in lines if any(stores(spot, each) for each in holders)), ())


def lost_outputs(run: DrivenRun) -> Iterator[Observation]:
    """What one graph wrote and another one wrote over before anybody read it, at the line where their ways part."""
    for epoch, after in zip(run.epochs, run.epochs[1:], strict=False):
        shared = (epoch.taken.memory & after.taken.memory) - epoch.read - after.taken.read
        if epoch.taken is after.taken or not shared:
            continue
        text = "a replay of another graph writes over what this one wrote, before anybody has read it"
        spots = up_to_parting(epoch, after) or epoch.spots
        yield Observation(ObservationKind.OUTPUT_OVERWRITTEN, text, spots, step=1)


def up_to_parting(epoch: Epoch, after: Epoch) -> tuple[Spot, ...]:
    """The lines down to the one that replays twice, by two of its calls or on two lines; none where a loop does."""
    ways = zip(epoch.way, after.way, strict=False)
    parting = next((at for at, (ours, theirs) in enumerate(ways) if ours != theirs), None)
    return () if parting is None else epoch.spots[: parting + 1]


def stores_into(spot: Spot, holder: Holder) -> bool:
    """Whether the statement at a line assigns to the holder's name or to an item of it, or puts something in.

    A local name is no attribute of that name, and a constructor is no place to blame: who calls it is.
    """
    around = function_around(spot.path, spot.line)
    if around is not None and around.name == "__init__":
        return False
    is_attribute = not holder.name.endswith("]")
    stored: list[ast.expr] = []
    for node in ast.walk(parsed(spot.path)):
        match node:
            case ast.Assign(lineno=spot.line, targets=targets):
                stored += [
                    each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])
                ]
            case ast.Call(lineno=spot.line, func=ast.Attribute(attr=method, value=owner)) if method in KEEPING:
                stored.append(owner)
    return any(
        last_name(ast.unparse(each)) == last_name(holder.name)
        for each in stored
        if not is_attribute or isinstance(each, ast.Attribute)
    )


def makes(spot: Spot, holder: Holder) -> bool:
    """Whether a line makes the object that holds an output, of something."""
    calls = (node for node in ast.walk(parsed(spot.path)) if isinstance(node, ast.Call) and node.lineno == spot.line)
    return any((call.args or call.keywords) and last_name(ast.unparse(call.func)) == holder.kind for call in calls)


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
            case ast.Call(func=ast.Name(id="list" | "tuple" | "sorted" | "dict"), args=[_, *_]):
                return True
            case ast.ListComp() | ast.DictComp() | ast.GeneratorExp() | ast.Yield():
                return True
    return False
