"""What a captured step froze that a later eager step does otherwise: two lists of ATen calls become observations.

Calls are compared in order up to the first that differs in what it is. A different host number is a cause by
itself; a different shape runs on through every later call, so only those that read the state first are named.
Addresses of intermediates differ at every step and mean nothing; those of homes are compared apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from capturelint.runtime.distribution import is_random
from capturelint.runtime.lines import Line, LineLog, Store, parting
from capturelint.runtime.observations import Observation, Spot
from capturelint.runtime.trace import Call
from capturelint.vocabulary import ObservationKind


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step's calls and lines. ``homes`` names the addresses that the state held when the step began."""

    step: int
    calls: tuple[Call, ...]
    lines: tuple[Line, ...]
    homes: dict[int, str] = field(default_factory=dict)
    stores: tuple[Store, ...] = ()
    draws: tuple[tuple[Spot, ...], ...] = ()


def trace_of(step: int, calls: Sequence[Call], log: LineLog, homes: dict[int, str]) -> StepTrace:
    """A finished recording."""
    return StepTrace(step, tuple(calls), tuple(log.lines), homes, tuple(log.stores), tuple(log.draws))


def captured_otherwise(captured: StepTrace, eager: StepTrace) -> Observation | None:
    """The branch where a captured step left the path of the same step run eagerly; ``None`` if it did not."""
    at = first_other_call(captured.calls, eager.calls)
    if at is None:
        return None
    spots = branch_spots(captured, eager) or call_spots(captured, eager, at)
    return Observation(
        ObservationKind.CAPTURE_DEPENDENT,
        f"while captured the step ran {call_word(captured, at)}, eagerly {call_word(eager, at)}",
        spots,
        step=eager.step,
        before=call_word(captured, at),
        after=call_word(eager, at),
    )


def frozen(captured: StepTrace, later: StepTrace) -> list[Observation]:
    """What ``later`` does with other numbers, shapes or calls than ``captured``, the causes only."""
    stop = first_other_call(captured.calls, later.calls)
    pairs = list(zip(captured.calls, later.calls, strict=False))[:stop]
    found = list(unique(observations_of(pairs, captured, later)))
    if not found and stop is not None:
        found = [other_call(captured, later, stop)]
    return found


def observations_of(pairs: Sequence[tuple[Call, Call]], captured: StepTrace, later: StepTrace) -> Iterator[Observation]:
    """Differences of calls that are otherwise the same, up to the first shape that is no cause.

    A shape that follows a number is that number's doing, and so is everything behind it.
    """
    is_explained = False
    on_host: list[tuple[Call, Call]] = []
    for before, after in pairs:
        if shapes(before) != shapes(after):
            roots = [] if is_explained else [*growth(pairs, captured, later)]
            yield from roots or ([] if is_explained else [shape_changed(before, after, later, "")])
            return
        if before.scalars != after.scalars:
            is_explained = True
            yield scalar_changed(before, after, later)
        elif (names := other_homes(before, after, captured, later)) is not None:
            yield tensor_changed(after, later, *names)
        elif contents(before) != contents(after) and not is_upload(after):
            on_host.append((before, after))
        elif contents(before) != contents(after):
            yield host_bytes_changed(*maker_of(after, on_host, (before, after)), later)


def maker_of(upload: Call, on_host: Sequence[tuple[Call, Call]], otherwise: tuple[Call, Call]) -> tuple[Call, Call]:
    """The first call on the host that has the memory which ``upload`` takes."""
    taken = {tensor.address for tensor in upload.tensors if tensor.content}
    having = (
        (before, after)
        for before, after in on_host
        if taken & {tensor.address for tensor in (*after.tensors, *after.outputs)}
    )
    return next(having, otherwise)


def is_upload(call: Call) -> bool:
    """Whether a call takes host memory to the device; what stays on the host shows in the calls that follow."""
    sides = {tensor.device.split(":")[0] for tensor in (*call.tensors, *call.outputs)}
    return len(sides) > 1


def other_homes(before: Call, after: Call, captured: StepTrace, later: StepTrace) -> tuple[str, str] | None:
    """The home that a call read at capture and the other one that it reads later; ``None`` where there are none."""
    for old, new in zip(before.tensors, after.tensors, strict=False):
        first, second = captured.homes.get(old.address), later.homes.get(new.address)
        if first and second and first != second and old.address != new.address:
            return first, second
    return None


def growth(pairs: Sequence[tuple[Call, Call]], captured: StepTrace, later: StepTrace) -> Iterator[Observation]:
    """Calls that read a home whose shape is not what it was at capture."""
    for before, after in pairs:
        for old, new in zip(before.tensors, after.tensors, strict=False):
            home = later.homes.get(new.address)
            if home and old.shape != new.shape and captured.homes.get(old.address) == home:
                yield shape_changed(before, after, later, home)
                break


def first_other_call(first: Sequence[Call], second: Sequence[Call]) -> int | None:
    """Where two steps stop making the same calls from the same lines; ``None`` if they never do."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a.name != b.name or a.spots[-1:] != b.spots[-1:] or len(a.tensors) != len(b.tensors):
            return index
    return None if len(first) == len(second) else min(len(first), len(second))


def is_drawn(call: Call, step: StepTrace) -> bool:
    """Whether the line of a call draws a random number or asks for the time."""
    return draws_at(call.spots, step)


def draws_at(spots: tuple[Spot, ...], step: StepTrace) -> bool:
    """Whether a line draws from a generator of the host, torch's among them, or asks for the time."""
    if any(each[-1:] == spots[-1:] for each in step.draws):
        return True
    there = ((call.spots[-1].path, call.spots[-1].line) for call in step.calls if call.spots and is_host_draw(call))
    return bool(spots) and (spots[-1].path, spots[-1].line) in there


def is_host_draw(call: Call) -> bool:
    """Whether a call draws random numbers into memory of the host."""
    return is_random(call.name) and all(tensor.device.startswith("cpu") for tensor in (*call.tensors, *call.outputs))


def scalar_changed(before: Call, after: Call, later: StepTrace) -> Observation:
    """A host number that the graph keeps at its first value."""
    old, new = next((a, b) for a, b in zip(before.scalars, after.scalars, strict=False) if a != b)
    return Observation(
        ObservationKind.RANDOM_FROZEN if is_drawn(after, later) else ObservationKind.SCALAR_CHANGED,
        f"`{before.short}` was captured with {old[1]} and takes {new[1]} in step {later.step}",
        after.spots,
        step=later.step,
        call=before.short,
        before=old[1],
        after=new[1],
    )


def tensor_changed(after: Call, later: StepTrace, old: str, new: str) -> Observation:
    """A choice among tensors of the state that the graph keeps as it was."""
    return Observation(
        ObservationKind.RANDOM_FROZEN if is_drawn(after, later) else ObservationKind.TENSOR_CHANGED,
        f"`{after.short}` was captured with `{old}` and takes `{new}` in step {later.step}",
        after.spots,
        step=later.step,
        call=after.short,
        before=old,
        after=new,
    )


def shape_changed(before: Call, after: Call, later: StepTrace, home: str) -> Observation:
    """A shape that the graph keeps at its first size."""
    old, new = next((a, b) for a, b in zip(shapes(before), shapes(after), strict=False) if a != b)
    return Observation(
        ObservationKind.SHAPE_CHANGED,
        f"`{before.short}` was captured on shape {list(old)} and gets {list(new)} in step {later.step}",
        after.spots,
        step=later.step,
        call=before.short,
        before=str(list(old)),
        after=str(list(new)),
        home=home,
    )


def host_bytes_changed(before: Call, after: Call, later: StepTrace) -> Observation:
    """A copy from host memory that held other bytes at capture."""
    return Observation(
        ObservationKind.HOST_BYTES_CHANGED,
        f"`{before.short}` read other host memory at capture than it does in step {later.step}",
        after.spots,
        step=later.step,
        call=before.short,
    )


def other_call(captured: StepTrace, later: StepTrace, at: int) -> Observation:
    """A branch on a host value that went the other way at a later step."""
    spots = branch_spots(captured, later) or call_spots(captured, later, at)
    return Observation(
        ObservationKind.RANDOM_FROZEN if draws_at(spots, later) else ObservationKind.CALL_CHANGED,
        f"the captured step ran {call_word(captured, at)}, step {later.step} runs {call_word(later, at)}",
        spots,
        step=later.step,
        call=call_word(captured, at),
        before=call_word(captured, at),
        after=call_word(later, at),
    )


def moved_homes(before: StepTrace, after: StepTrace) -> Iterator[Observation]:
    """Homes that were given another tensor in ``before`` which ``after`` reads: replay keeps reading the old one."""
    read = {tensor.address for call in after.calls for tensor in call.tensors}
    for store in before.stores:
        address = next((address for address, name in after.homes.items() if name == store.slot.name), None)
        if address not in read:
            continue
        yield Observation(
            ObservationKind.ADDRESS_CHANGED,
            f"`{store.slot.name}` was another tensor after step {before.step} than before it",
            store.spots,
            step=after.step,
            home=store.slot.name,
        )


def moved_numbers(before: StepTrace) -> Iterator[Observation]:
    """Host numbers that a step changed: what a frozen scalar or branch was computed from."""
    for store in before.stores:
        old, new = store.slot.value, store.after
        yield Observation(
            ObservationKind.SCALAR_CHANGED,
            f"went from {old} to {new} in eager step {before.step}, which no replay repeats",
            store.spots,
            step=before.step,
            before=repr(old),
            after=repr(new),
            home=store.slot.name,
        )


def grown(before: StepTrace, seen: Observation) -> Iterator[Observation]:
    """Lists and dictionaries that ``before`` made longer: where ``seen``, the call that changed, comes from."""
    for store in before.stores:
        yield replace(
            seen,
            text=f"`{store.slot.name}` went from {store.slot.value} to {store.after} entries; {seen.text}",
            spots=store.spots,
            before=repr(store.slot.value),
            after=repr(store.after),
            home=store.slot.name,
        )


def unique(found: Iterator[Observation]) -> Iterator[Observation]:
    """One observation a line: layers run the same code."""
    seen: set[tuple[object, ...]] = set()
    for each in found:
        where = (each.kind, *(spot_key(each.spots)))
        if where not in seen:
            seen.add(where)
            yield each


def spot_key(spots: tuple[Spot, ...]) -> tuple[object, ...]:
    """The innermost line."""
    return (spots[-1].path, spots[-1].line) if spots else ()


def shapes(call: Call) -> list[tuple[int, ...]]:
    """The input shapes of a call."""
    return [tensor.shape for tensor in call.tensors]


def contents(call: Call) -> list[str]:
    """The digests of a call's host tensors."""
    return [tensor.content for tensor in call.tensors]


def call_word(trace: StepTrace, at: int) -> str:
    """```cat` at line 12``, or that nothing follows."""
    if at >= len(trace.calls):
        return "nothing more"
    call = trace.calls[at]
    return f"`{call.short}` (line {call.spots[-1].line})" if call.spots else f"`{call.short}`"


def call_spots(first: StepTrace, second: StepTrace, at: int) -> tuple[Spot, ...]:
    """The line of the call that one of the two steps makes and the other does not."""
    return next((trace.calls[at].spots for trace in (second, first) if at < len(trace.calls)), ())


def branch_spots(first: StepTrace, second: StepTrace) -> tuple[Spot, ...]:
    """The line where two steps took different ways."""
    line = parting(list(first.lines), list(second.lines))
    return () if line is None else (Spot(line.path, line.line, ""),)
