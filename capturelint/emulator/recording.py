"""One capture: ATen calls with frozen arguments, run once to learn their shapes and then undone.

CUDA runs nothing while it captures. Here every call has to run, because shapes and views depend on it, so what the
capture writes to memory that existed before is saved first and restored at the end, and what the capture allocated
is left undefined until the first replay. Replay runs the same calls on the same storages and copies out-of-place
results to where the capture put them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from capturelint.emulator.generators import address_of
from capturelint.emulator.kernels import Kernel
from capturelint.emulator.memory import Memory, has_storage, memory_of, poison, tensors_in, untyped_storage
from capturelint.emulator.refusal import (
    CAPTURING,
    KINDS,
    OFFSET_IN_CAPTURE,
    PAGEABLE,
    PREVIOUS,
    UNJOINED,
    Call,
    CaptureRefused,
    refusing_row,
)
from capturelint.vocabulary import ObservationKind

if TYPE_CHECKING:
    from capturelint.emulator.generators import DeviceGenerator
    from capturelint.emulator.machine import Machine
    from capturelint.emulator.streams import EmulatedStream


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call to run again. ``results`` are (position in the flattened result, where it belongs)."""

    kernel: Kernel
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[tuple[int, torch.Tensor], ...]
    is_random: bool


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """Stands for a capture on the storages that it allocated, so that they do not keep it alive."""

    pool: object


class Recording:
    """What ``capture_begin`` starts and ``capture_end`` closes."""

    def __init__(self, machine: Machine, pool: object, stream: EmulatedStream, registered: set[int]) -> None:
        self.machine = machine
        self.owner = Owner(pool)
        self.origin = stream
        self.streams = {stream}
        self.work_before = stream.work
        self.registered = registered
        self.calls: list[RecordedCall] = []
        self.unclaimed: list[tuple[RecordedCall, frozenset[int]]] = []
        self.aliases: list[torch.Tensor] = []
        self.saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.results: list[torch.Tensor] = []
        self.states: dict[int, tuple[DeviceGenerator, torch.Tensor]] = {}
        self.refused: CaptureRefused | None = None

    def refuse(self, message: str, kind: ObservationKind, operation: str, why: str = "") -> CaptureRefused:
        """The error to raise; from here on the capture, and the process, are spoiled."""
        if self.refused is not None:
            return self.previous(operation)
        self.refused = CaptureRefused(message, kind, operation, why)
        self.machine.unfit = operation
        return self.refused

    def previous(self, operation: str) -> CaptureRefused:
        """What every call after a refused one fails with."""
        return CaptureRefused(PREVIOUS, ObservationKind.REFUSED, operation)

    def admit(self, call: Call) -> None:
        """Raise if CUDA would refuse ``call``."""
        name = call.operation.name
        if self.refused is not None:
            raise self.previous(name)
        if (row := refusing_row(call)) is not None:
            kind, message = KINDS[row.effect]
            raise self.refuse(message, kind, name, row.why)
        if call.operation.is_transfer:
            self.admit_transfer(call)

    def admit_transfer(self, call: Call) -> None:
        """A copy between host and device is captured only if it is asynchronous and the host side pinned."""
        source, target = self.ends(call)
        if not {source, target} & {Memory.HOST, Memory.PINNED}:
            return
        name = call.operation.name
        if Memory.HOST in (source, target):
            if target is Memory.DEVICE:
                raise self.refuse(
                    PAGEABLE, ObservationKind.PAGEABLE_COPY, name, "the source is in pageable host memory"
                )
            raise self.refuse(PAGEABLE, ObservationKind.HOST_READ, name, "values are copied to the host")
        if not call.value("non_blocking"):
            kind = ObservationKind.SYNCHRONISED if target is Memory.DEVICE else ObservationKind.HOST_READ
            raise self.refuse(CAPTURING, kind, name, "a copy without non_blocking=True waits for the stream")

    def ends(self, call: Call) -> tuple[Memory, Memory]:
        """The memory that a copy reads and the memory that it writes."""
        tensors = [memory_of(tensor) for tensor in tensors_in(call.args)]
        if len(tensors) > 1:
            return tensors[1], tensors[0]
        if self.machine.downloading:
            return tensors[0], Memory.PINNED if call.value("non_blocking") else Memory.HOST
        return tensors[0], Memory.DEVICE

    def run(self, call: Call, is_claimed: bool) -> Any:
        """Run ``call`` and write it down; at once, or once somebody on the device uses what it made."""
        operation, args, kwargs = call.operation, call.args, call.kwargs
        touched = [tensor for tensor in tensors_in((args, kwargs)) if has_storage(tensor)]
        for tensor in touched:
            owner = untyped_storage(tensor)._capturelint_owner  # type: ignore[attr-defined]
            if owner is not self.owner and memory_of(tensor) is not Memory.HOST:
                self.machine.ledger.watch(tensor, None if owner is None else owner.pool)
        if operation.is_view:
            return operation.kernel(*args, **kwargs)
        for name in operation.writes:
            for tensor in tensors_in(call.value(name)):
                self.save(tensor)
        frozen_args, frozen_kwargs = self.freeze(args), self.freeze(kwargs)
        result = self.draw(call) if operation.is_random else operation.kernel(*args, **kwargs)
        addresses = frozenset(untyped_storage(tensor)._cdata for tensor in touched)
        fresh = tuple(self.fresh(result, addresses))
        if operation.allocates_undefined:
            for _, tensor in fresh:
                tensor.zero_()  # fresh device memory reads as zeros more often than not
            return result
        recorded = RecordedCall(operation.kernel, frozen_args, frozen_kwargs, fresh, operation.is_random)
        made = addresses | {untyped_storage(tensor)._cdata for _, tensor in fresh}
        if is_claimed:
            self.machine.streams.current.work += 1
            self.keep(recorded)
        else:
            self.unclaimed.append((recorded, made))
        return result

    def fresh(self, result: Any, known: frozenset[int]) -> Iterator[tuple[int, torch.Tensor]]:
        """What a call allocated: position in the flattened result, and an alias."""
        for position, tensor in enumerate(tensors_in(result)):
            if not has_storage(tensor):
                continue
            storage = untyped_storage(tensor)
            if storage._cdata not in known:
                storage._capturelint_owner = self.owner  # type: ignore[attr-defined]
                yield position, self.alias(tensor)

    def keep(self, recorded: RecordedCall) -> None:
        """Make a call part of the graph."""
        self.calls.append(recorded)
        self.results += [tensor for _, tensor in recorded.results]

    def claim(self, tensor: torch.Tensor) -> None:
        """Scratch space turned out to be on the device: so are the calls that made it."""
        needed = {untyped_storage(tensor)._cdata}
        taken, left = [], []
        for recorded, made in reversed(self.unclaimed):
            if made & needed:
                needed |= made
                taken.append(recorded)
            else:
                left.append((recorded, made))
        self.unclaimed = left[::-1]
        for recorded in reversed(taken):
            self.keep(recorded)

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """A counted reference of this recording's own."""
        alias = self.machine.ledger.alias(tensor)
        self.aliases.append(alias)
        return alias

    def freeze(self, value: Any) -> Any:
        """``value`` with its tensors replaced by aliases: what the user does to the objects later does not matter."""
        if isinstance(value, torch.Tensor):
            if not has_storage(value):
                return value
            # A host scalar becomes a launch argument: its value is frozen, not its address.
            return value.detach().clone() if memory_of(value) is Memory.HOST else self.alias(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.freeze(item) for item in value)
        if isinstance(value, dict):
            return {key: self.freeze(item) for key, item in value.items()}
        return value

    def save(self, tensor: torch.Tensor) -> None:
        """Save memory from before the capture, whole, when it is first written."""
        storage = untyped_storage(tensor)
        if storage._capturelint_owner is self.owner or storage._cdata in self.saved:  # type: ignore[attr-defined]
            return
        flat = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
        self.saved[storage._cdata] = (flat, flat.clone())

    def draw(self, call: Call) -> Any:
        """Run a random call on copies of the generators' states."""
        passed = call.kwargs.get("generator")
        generators = self.machine.generators
        generator = generators.find(passed) if isinstance(passed, torch._C.Generator) else generators.default
        if generator is None:
            return call.operation.kernel(*call.args, **call.kwargs)
        if generator is not generators.default and address_of(generator) not in self.registered:
            raise self.refuse(
                OFFSET_IN_CAPTURE,
                ObservationKind.FOREIGN_GENERATOR,
                call.operation.name,
                "the generator is not registered with the graph (`graph.register_generator_state`)",
            )
        if address_of(generator) not in self.states:
            self.states[address_of(generator)] = (generator, generator.get_state())
        if generator is not generators.default:
            return call.operation.kernel(*call.args, **call.kwargs)
        with generators.lent():
            return call.operation.kernel(*call.args, **call.kwargs)

    def forget_generator(self, generator: DeviceGenerator) -> None:
        """The user seeded it inside the capture: that stays."""
        self.states.pop(address_of(generator), None)

    def undo(self) -> None:
        """Restore memory and generators, and leave what the capture computed undefined."""
        with undispatched():
            for flat, content in self.saved.values():
                flat.copy_(content)
            self.saved.clear()
            for tensor in self.results:
                poison(tensor)
            self.results.clear()
        for generator, state in self.states.values():
            torch._C.Generator.set_state(generator, state)
        self.states.clear()

    def must_be_joined(self) -> None:
        """Raise if a side stream has work that the capturing stream does not wait for."""
        for stream in self.streams - {self.origin}:
            if stream.work > self.origin.seen.get(stream, 0):
                raise self.refuse(
                    UNJOINED,
                    ObservationKind.UNJOINED_STREAM,
                    "CUDAGraph.capture_end",
                    f"stream {stream.stream_id} was not waited for",
                )

    def replay(self) -> None:
        """Run the calls again, without Python above ATen."""
        random = any(call.is_random for call in self.calls)
        with undispatched():
            if random:
                with self.machine.generators.lent():
                    self.replay_calls()
            else:
                self.replay_calls()

    def replay_calls(self) -> None:
        """The loop of ``replay``."""
        for call in self.calls:
            result = call.kernel(*call.args, **call.kwargs)
            if not call.results:
                continue
            if isinstance(result, torch.Tensor):
                call.results[0][1].copy_(result)
                continue
            flat = list(tensors_in(result))
            for position, target in call.results:
                target.copy_(flat[position])

    def release(self) -> None:
        """Drop what the recording holds."""
        self.machine.ledger.release(self.aliases)
        self.aliases.clear()
        self.calls.clear()


@contextmanager
def undispatched() -> Iterator[None]:
    """Below modes, autograd and autocast, where a graph's kernels live."""
    with _disable_current_modes(), torch.inference_mode(), torch.autocast("cpu", enabled=False):
        yield
