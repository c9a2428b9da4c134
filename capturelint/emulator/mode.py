"""Every ATen call inside the context: where its arguments live, where its result will, and whether CUDA allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from capturelint.emulator.kernels import EmulationError
from capturelint.emulator.memory import (
    ON_DEVICE,
    ON_HOST,
    UNCLAIMED,
    Memory,
    has_storage,
    memory_of,
    place,
    tensors_in,
    untyped_storage,
)
from capturelint.emulator.operations import opaque
from capturelint.emulator.pool import give_back, outgrown

if TYPE_CHECKING:
    from capturelint.emulator.machine import Machine
    from capturelint.emulator.operations import Operation

HOST = torch.device("cpu")
TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
WRONG_GENERATOR = "Expected a 'cuda' device type for generator but found 'cpu'"


class EmulatedDevice(TorchDispatchMode):
    """The emulated device, between autograd and the CPU kernels."""

    supports_higher_order_operators = True

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not import the compiler for a mode that it never sees."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        operation = self.machine.operations.known.get(id(function)) or self.look_up(function)
        if operation.is_plain_view:
            # Nothing is launched, and the result lives where its storage does.
            return operation.kernel.function(*args, **kwargs) if kwargs else operation.kernel.function(*args)
        return self.run(operation, args, kwargs or {})

    def run(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call, and write it down where it is captured."""
        if operation.is_divided and (divided := self.divide(operation, args, kwargs)) is not NotImplemented:
            return divided
        recording = self.machine.recording
        if recording is not None:
            stream = self.machine.streams.current
            if stream not in recording.streams:
                recording = None
            elif (
                not (operation.is_random and operation.draws(args, kwargs))
                and (kept := recording.pointers.keep_all(args, kwargs)) is not None
            ):
                if operation.is_examined or recording.refused is not None:
                    recording.admit(operation, args, kwargs)
                return recording.run(operation, args, kwargs, ON_DEVICE, stream, kept)
        memory = self.side(operation, args, kwargs)
        on_device = memory is ON_DEVICE
        if kwargs and ("device" in kwargs or "pin_memory" in kwargs):
            memory, kwargs, asked = self.destination(operation, memory, kwargs)
        else:
            asked = kwargs
        draws = operation.is_random and memory is ON_DEVICE and operation.draws(args, kwargs)
        if draws:
            self.check_generator(operation, kwargs)
        if recording is not None and (on_device or memory is ON_DEVICE or memory is UNCLAIMED) and memory is not None:
            recording.admit(operation, args, asked)
            return recording.run(operation, args, kwargs, memory, stream)
        try:
            result = self.draw(operation, args, kwargs) if draws else operation.kernel.function(*args, **kwargs)
        except (NotImplementedError, EmulationError) as error:
            result = operation.kernel.instead(error, args, kwargs)
        if memory is None or operation.is_view:
            return result
        if operation.writes:
            self.mark_written(operation, args, kwargs, result, memory)
        else:
            self.mark(result, memory)
        return result

    def divide(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that is made of others, as those; NotImplemented if it is not."""
        if operation.body is not None:
            try:
                with self:
                    return operation.body(*args, **kwargs)
            except EmulationError:
                pass  # its kernel below has the fake implementation, and says so if there is none
        if not operation.is_composite:
            return NotImplemented
        with self:
            return operation.overload.decompose(*args, **kwargs)

    def look_up(self, function: Any) -> Operation:
        """What is known of an operation that was not met before, or is not one of ATen's kind."""
        if isinstance(function, torch._ops.OpOverload):
            return self.machine.operations.read(function)
        return opaque(function, self.branch if function.name() == "cond" else None, self.machine)

    def side(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Memory | None:
        """Where a result belongs if nothing else is asked for: the device, nobody yet, or (None) the host.

        Raises RuntimeError as torch does if the tensors are on two devices.
        """
        found, stray, unclaimed = False, False, None
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, torch.Tensor):
                try:
                    memory = untyped_storage(value)._capturelint_memory  # type: ignore[attr-defined]
                except NotImplementedError:  # sparse
                    memory = memory_of(value)
                if memory is ON_DEVICE:
                    found = True
                elif memory is UNCLAIMED:
                    unclaimed = [*(unclaimed or ()), value]
                elif value.dim() != 0:
                    stray = True
            elif isinstance(value, (list, tuple)):
                for tensor in value:
                    if not isinstance(tensor, torch.Tensor):
                        continue
                    memory = memory_of(tensor)
                    if memory is ON_DEVICE:
                        found = True
                    elif memory is UNCLAIMED:
                        unclaimed = [*(unclaimed or ()), tensor]
                    elif tensor.dim() != 0:
                        stray = True
        if not found and stray:
            for tensor in unclaimed or ():
                place(tensor, ON_HOST)
        if not found:
            return UNCLAIMED if unclaimed is not None and not stray else None
        if unclaimed is not None:
            for tensor in unclaimed:
                place(tensor, ON_DEVICE)
            if self.machine.recording is not None:
                self.machine.recording.claim(unclaimed)
        if stray:
            self.check_strays(operation, args, kwargs)
        return ON_DEVICE

    def check_strays(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise if a host tensor is where the operation needs a device one."""
        for name in operation.arguments:
            if name in operation.host_arguments:
                continue
            for tensor in tensors_in(operation.argument(name, args, kwargs)):
                if tensor.dim() != 0 and memory_of(tensor) in (Memory.HOST, Memory.PINNED):
                    raise RuntimeError(f"{TWO_DEVICES} (when checking argument for {name} in {operation.name})")

    def destination(
        self, operation: Operation, memory: Memory | None, kwargs: dict[str, Any]
    ) -> tuple[Memory | None, dict[str, Any], dict[str, Any]]:
        """The memory that a call asks for, its keywords for the CPU kernel, and the keywords that were meant.

        Python's factories always pass ``pin_memory``; a factory or a cast inside a composite operation passes the
        device of its arguments without it.
        """
        device, asked, kwargs = kwargs.get("device"), kwargs, dict(kwargs)
        if device is None:
            pass
        elif device.type == "cuda":
            if device.index not in (None, 0):
                raise RuntimeError("CUDA error: invalid device ordinal")
            memory, kwargs["device"] = Memory.DEVICE, HOST
        elif device.type != "cpu" or "pin_memory" in kwargs:
            memory = None
        elif operation.is_transfer and self.machine.downloading:
            memory = self.download_target(kwargs)
        elif memory is None:
            memory = Memory.UNCLAIMED
        if kwargs.get("pin_memory"):
            memory, kwargs["pin_memory"] = Memory.PINNED, False
        return memory, kwargs, asked

    def download_target(self, kwargs: dict[str, Any]) -> Memory:
        """An asynchronous copy to the host allocates pinned memory for its result."""
        return Memory.PINNED if kwargs.get("non_blocking") else Memory.HOST

    def draw(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a random call on the device that is not captured."""
        if kwargs.get("generator") is not None:
            return operation.kernel(*args, **kwargs)
        self.machine.must_draw(operation.name)
        with self.machine.generators.lent():
            return operation.kernel(*args, **kwargs)

    def check_generator(self, operation: Operation, kwargs: dict[str, Any]) -> None:
        """A generator of the host cannot draw for the device."""
        generator = kwargs.get("generator")
        if generator is not None and self.machine.generators.find(generator) is None:
            raise RuntimeError(WRONG_GENERATOR)

    def mark(self, result: Any, memory: Memory) -> None:
        """Say where what a call allocated lives, and let it take over freed memory if any fits."""
        if isinstance(result, torch.Tensor):
            place(result, memory)
            if memory is ON_DEVICE and self.machine.ledger.entries:
                self.take_over(result)
        elif isinstance(result, (list, tuple)):
            for item in result:
                self.mark(item, memory)

    def mark_written(
        self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, memory: Memory
    ) -> None:
        """Say where results live that are not among the arguments, which a call writes."""
        for tensor in operation.written(args, kwargs):
            if outgrown(tensor):
                give_back(untyped_storage(tensor))
        if args and result is args[0]:
            return
        passed = list(tensors_in((args, kwargs)))
        for tensor in tensors_in(result):
            if not any(tensor is given for given in passed):
                place(tensor, memory)

    def take_over(self, made: torch.Tensor) -> None:
        """Give a fresh tensor memory that a graph still points at."""
        if self.machine.recording is None and has_storage(made):
            self.machine.ledger.reuse(made)

    def branch(self, predicate: Any, on_true: Any, on_false: Any, operands: Any) -> Any:
        """``torch.cond``, which eager torch runs by reading the predicate."""
        return (on_true if bool(predicate) else on_false)(*operands)
