"""One capture: ATen calls with frozen arguments, run once to learn their shapes and then undone.

CUDA runs nothing while it captures. Here every call has to run, because shapes and views depend on it, so what the
capture writes to memory that existed before is saved first and restored at the end, and what the capture allocated
is left undefined until the first replay. Replay runs the same calls on the same storages and copies out-of-place
results to where the capture put them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from capturelint.emulator.generators import address_of
from capturelint.emulator.kernels import EmulationError
from capturelint.emulator.memory import (
    ON_DEVICE,
    ON_HOST,
    UNCLAIMED,
    Memory,
    has_storage,
    memory_of,
    place,
    poison,
    poison_storage,
    tensors_in,
    untyped_storage,
)
from capturelint.emulator.pointers import COMPOUND, Pointers
from capturelint.emulator.pool import give_back, outgrown
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
from capturelint.emulator.replay import RecordedCall, replay, undispatched
from capturelint.emulator.spots import Note, Place, Settler, Spot
from capturelint.emulator.undo import Before
from capturelint.vocabulary import Effect, ObservationKind

if TYPE_CHECKING:
    from capturelint.emulator.generators import DeviceGenerator
    from capturelint.emulator.ledger import Entry
    from capturelint.emulator.machine import Machine
    from capturelint.emulator.operations import Operation
    from capturelint.emulator.pool import Lease, Pool
    from capturelint.emulator.streams import EmulatedStream

NOTHING: frozenset[int] = frozenset()
Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """Stands for a capture on the storages that it allocated, so that they do not keep it alive."""


class Recording:
    """What ``capture_begin`` starts and ``capture_end`` closes."""

    def __init__(
        self, machine: Machine, pool: Pool, stream: EmulatedStream, registered: set[int], error_mode: str = "global"
    ) -> None:
        self.machine = machine
        self.error_mode = error_mode
        self.thread = threading.get_ident()
        self.pool = pool
        self.owner = Owner()
        self.origin = stream
        self.streams = {stream}
        self.registered = registered
        self.notes: list[Note] = []
        self.unclaimed: list[tuple[Note, frozenset[int]]] = []
        self.calls: list[RecordedCall] | None = None
        self.settler = Settler()
        self.before = Before(self.owner)
        self.pointers = Pointers(machine.ledger, pool, self.owner)
        self.undefined: list[tuple[Lease, torch.dtype | None]] = []
        self.undefined_elsewhere: list[torch.Tensor] = []
        self.states: dict[int, tuple[DeviceGenerator, torch.Tensor]] = {}
        self.refused: CaptureRefused | None = None
        self.spans: list[tuple[int, int]] = []
        self.followed = -1
        self.seen: list[Lease] = []

    def forbids_unsafe_calls(self) -> bool:
        """Whether this thread may not ask about events: ``capture_error_mode``."""
        if self.error_mode == "thread_local":
            return self.thread == threading.get_ident()
        return self.error_mode == "global"

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

    def admit(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise if CUDA would refuse the call."""
        if self.refused is not None:
            raise self.previous(operation.name)
        if not operation.is_examined:
            return
        call = Call(operation, args, kwargs)
        if (row := refusing_row(call)) is not None and not (row.effect is Effect.READ and self.machine.in_cpu_check):
            kind, message = KINDS[row.effect]
            raise self.refuse(message, kind, operation.name, row.why)
        if operation.is_transfer:
            self.admit_transfer(call)

    def admit_transfer(self, call: Call) -> None:
        """A copy between host and device is captured only if it is asynchronous and the host side pinned.

        A copy of no elements copies nothing (H200, torch 2.11: `torch.tensor([], device="cuda")` is captured).
        """
        if any(not tensor.numel() for tensor in tensors_in(call.args)):
            return
        source, target = self.ends(call)
        if not {source, target} & {Memory.HOST, Memory.PINNED}:
            return
        name = call.operation.name
        if Memory.HOST in (source, target):
            if target is ON_DEVICE:
                raise self.refuse(
                    PAGEABLE, ObservationKind.PAGEABLE_COPY, name, "the source is in pageable host memory"
                )
            raise self.refuse(PAGEABLE, ObservationKind.HOST_READ, name, "values are copied to the host")
        if not call.value("non_blocking"):
            kind = ObservationKind.SYNCHRONISED if target is ON_DEVICE else ObservationKind.HOST_READ
            raise self.refuse(CAPTURING, kind, name, "a copy without non_blocking=True waits for the stream")

    def ends(self, call: Call) -> tuple[Memory, Memory]:
        """The memory that a copy reads and the memory that it writes."""
        tensors = [memory_of(tensor) for tensor in tensors_in(call.args)]
        if len(tensors) > 1:
            return tensors[1], tensors[0]
        if self.machine.downloading:
            return tensors[0], Memory.PINNED if call.value("non_blocking") else Memory.HOST
        return tensors[0], Memory.DEVICE

    def run(
        self,
        operation: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        memory: Memory,
        stream: EmulatedStream,
        kept: tuple[list[Any], dict[str, Any]] | None = None,
    ) -> Any:
        """Run a call whose result belongs into ``memory``, and write it down with ``kept`` for its arguments.

        Calls on scratch space that nobody has claimed are written down once somebody on the device uses it.
        """
        kernel, writes = operation.kernel, operation.writes
        if operation.is_view:
            return kernel(*args, **kwargs)
        written = operation.written(args, kwargs) if writes else ()
        for tensor in written:
            self.before.keep(tensor, operation, args)
        self.pointers.froze_values = False
        kept_args, kept_kwargs = kept or self.pointers.freeze_all(args, kwargs)
        draws = operation.is_random and operation.draws(args, kwargs)
        try:
            result = self.draw(operation, args, kwargs) if draws else kernel.function(*args, **kwargs)
        except (NotImplementedError, EmulationError) as error:
            result = kernel.instead(error, args, kwargs)
        if written and (grown := [tensor for tensor in written if outgrown(tensor)]):
            for tensor in grown:
                self.regrow(tensor, stream)
            kept_args, kept_kwargs = self.pointers.freeze_all(args, kwargs)
        fresh: Sequence[tuple[int, Place]] = ()
        if not (writes and args and result is args[0]):
            passed: frozenset[int] = NOTHING
            if self.pointers.froze_values or writes:
                passed = addresses_in((*args, *kwargs.values()))
            if isinstance(result, Tensor):
                alias = self.adopt_one(result, memory, stream, passed, operation.allocates_undefined)
                fresh = () if alias is None else ((0, alias),)
            else:
                fresh = self.adopt(result, memory, stream, passed, operation.allocates_undefined)
        if operation.allocates_undefined:
            return result
        note = (kernel, kept_args, kept_kwargs, fresh, draws)
        if memory is UNCLAIMED:
            self.unclaimed.append((note, addresses_in((*args, *kwargs.values(), *[place for _, place in fresh]))))
        else:
            stream.work += 1
            self.notes.append(note)
        return result

    def regrow(self, tensor: torch.Tensor, stream: EmulatedStream) -> None:
        """A call has made a tensor larger than its block: it gets another one, with what was in the first."""
        storage = untyped_storage(tensor)
        self.pointers.pools.add(storage._capturelint_pool)  # type: ignore[attr-defined]
        old, new = give_back(storage), self.pool.lend(storage, stream, self.owner)
        places = [Spot((lease, torch.uint8, torch.Size((old.nbytes,)), (1,), 0)) for lease in (new, old)]
        copy = self.machine.operations.read(torch.ops.aten.copy_.default).kernel
        self.notes.append((copy, places, {}, (), False))
        self.undefined.append((new, tensor.dtype))

    def adopt(
        self, result: Any, memory: Memory, stream: EmulatedStream, passed: frozenset[int], zeroed: bool
    ) -> Sequence[tuple[int, Place]]:
        """Give what a call allocated its places: position in the flattened result, and where the graph sees it.

        ``passed`` are the addresses of storages that were arguments, where their marks do not tell.
        """
        found = []
        adopted: list[Tensor] = []
        for position, tensor in enumerate(tensors_in(result)):
            alias = self.adopt_one(tensor, memory, stream, passed, zeroed)
            if alias is None and (address := address_in(tensor)) and address in map(address_in, adopted):
                alias = self.pointers.point_at(tensor)
            if alias is not None:
                found.append((position, alias))
                adopted.append(tensor)
        return found

    def adopt_one(
        self, tensor: torch.Tensor, memory: Memory, stream: EmulatedStream, passed: frozenset[int], zeroed: bool
    ) -> Place | None:
        """Give one tensor its place; None if the call did not allocate it."""
        try:
            storage = untyped_storage(tensor)
        except NotImplementedError:  # sparse
            place(tensor, memory)
            return None
        # What a call allocated carries no mark yet.
        if storage._capturelint_memory is not ON_HOST or storage._cdata in passed:  # type: ignore[attr-defined]
            return None
        if zeroed:
            tensor.zero_()  # fresh device memory reads as zeros more often than not
        if memory is ON_DEVICE and storage.nbytes() and not (tensor.is_nested or tensor.is_quantized):
            lease, dtype = self.pool.lend(storage, stream, self.owner), tensor.dtype
            self.undefined.append((lease, None if zeroed else dtype))
            return Spot((lease, dtype, tensor.size(), tensor.stride(), tensor.storage_offset()))
        storage._capturelint_owner = self.owner  # type: ignore[attr-defined]
        storage._capturelint_memory = memory  # type: ignore[attr-defined]
        alias = tensor.detach()
        if not zeroed and memory is not UNCLAIMED:
            self.undefined_elsewhere.append(alias)
        return alias

    def claim(self, tensors: Iterable[torch.Tensor]) -> None:
        """Scratch space turned out to be on the device: so are the calls that made it."""
        needed = {untyped_storage(tensor)._cdata for tensor in tensors}
        taken, left = [], []
        for note, made in reversed(self.unclaimed):
            if made & needed:
                needed |= made
                taken.append(note)
            else:
                left.append((note, made))
        self.unclaimed = left[::-1]
        for note in reversed(taken):
            self.notes.append(note)
            self.undefined_elsewhere += [place for _, place in note[3] if isinstance(place, Tensor)]

    def draw(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a random call on copies of the generators' states."""
        passed = kwargs.get("generator")
        generators = self.machine.generators
        generator = generators.find(passed) if isinstance(passed, torch._C.Generator) else generators.default
        if generator is None:
            return operation.kernel(*args, **kwargs)
        if generator is not generators.default and address_of(generator) not in self.registered:
            raise self.refuse(
                OFFSET_IN_CAPTURE,
                ObservationKind.FOREIGN_GENERATOR,
                operation.name,
                "the generator is not registered with the graph (`graph.register_generator_state`)",
            )
        if address_of(generator) not in self.states:
            self.states[address_of(generator)] = (generator, generator.get_state())
        if generator is not generators.default:
            return operation.kernel(*args, **kwargs)
        with generators.lent():
            return operation.kernel(*args, **kwargs)

    def forget_generator(self, generator: DeviceGenerator) -> None:
        """The user seeded it inside the capture: that stays."""
        self.states.pop(address_of(generator), None)

    def undo(self) -> None:
        """Restore memory and generators, and leave what the capture allocated undefined."""
        self.pool.events.append(None)
        for lease, dtype in self.undefined:
            # Nobody can see what was freed again.
            if (made := lease()) is not None and made.nbytes() == lease.nbytes:
                poison_storage(made, dtype)
        if self.undefined_elsewhere:
            with undispatched():
                for tensor in self.undefined_elsewhere:
                    poison(tensor)
        self.before.put_back()
        self.undefined.clear()
        self.undefined_elsewhere.clear()
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

    def dead_inputs(self) -> set[Entry]:
        """Memory from before the capture that the user has freed."""
        return {entry for entry in self.pointers.held.values() if entry.is_free()}

    def replay(self) -> None:
        """Run the calls again, on memory that holds what the program sees."""
        for pool in self.pointers.pools:
            pool.catch_up()
        if self.calls is None:
            self.settle()
        seen = self.seen_by_program()
        for lease in seen:
            lease.copy_in()
        replay(self.calls or (), self.machine.generators)
        for lease in seen:
            lease.copy_out()

    def settle(self) -> None:
        """Make the tensors that the calls name."""
        with undispatched():
            self.calls = [self.settler.call(note) for note in self.notes]
        self.notes.clear()
        leases = (self.settler.leases | self.pointers.leases).values()
        self.spans = merged((lease.address, lease.address + lease.nbytes) for lease in leases)
        self.settler.leases.clear()

    def seen_by_program(self) -> list[Lease]:
        """Memory of pools that a replay touches and the program holds; worked out anew where a pool has changed."""
        followed = sum(pool.num_followed for pool in self.pointers.pools)
        if followed != self.followed:
            self.followed = followed
            self.seen = [lease for pool in self.pointers.pools for lease in pool.leases_within(self.spans)]
        return self.seen

    def release(self) -> None:
        """Drop what the recording holds."""
        for entry in self.settler.entries():
            entry.num_held -= 1
        self.settler.clear()
        self.seen.clear()
        self.pointers.release()
        self.notes.clear()
        self.calls = []
        self.unclaimed.clear()


def addresses_in(values: Iterable[Any]) -> frozenset[int]:
    """Of the storages behind the tensors among ``values``."""
    return frozenset(
        [address_in(tensor) for value in values if isinstance(value, COMPOUND) for tensor in tensors_in(value)]
    )


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same addresses in as few spans as can be."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def address_in(tensor: torch.Tensor) -> int:
    """Of the storage object behind ``tensor``; 0 for one without."""
    return untyped_storage(tensor)._cdata if has_storage(tensor) else 0
