"""What CUDA refuses while a stream captures: the error, and the conditions that ``rules/aten.yaml`` names.

A refusal is raised at the call that asked for it, before anything is computed; everything that follows in the same
capture fails with CUDA's "previous error", so the first exception of the ``__context__`` chain is the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from capturelint.catalog import AtenRow
from capturelint.emulator.memory import Memory, memory_of, tensors_in
from capturelint.vocabulary import Effect, ObservationKind

if TYPE_CHECKING:
    from capturelint.emulator.operations import Operation

CAPTURING = "CUDA error: operation not permitted when stream is capturing"
PREVIOUS = "CUDA error: operation failed due to a previous error during capture"
PAGEABLE = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
    "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
UNJOINED = "CUDA error: capturing stream has unjoined work"
OFFSET_IN_CAPTURE = "Attempt to increase offset for a CUDA generator not in capture mode."
OFFSET_OUTSIDE = "Offset increment outside graph capture encountered unexpectedly."

MASKS = (torch.bool, torch.uint8)
KINDS: Mapping[Effect, tuple[ObservationKind, str]] = {
    Effect.READ: (ObservationKind.HOST_READ, CAPTURING),
    Effect.DYNAMIC_SHAPE: (ObservationKind.DYNAMIC_OUTPUT, CAPTURING),
    Effect.UPLOAD: (ObservationKind.PAGEABLE_COPY, PAGEABLE),
    Effect.SYNCHRONIZE: (ObservationKind.SYNCHRONISED, CAPTURING),
    Effect.QUERY: (ObservationKind.SYNCHRONISED, CAPTURING),
    Effect.CHECKED: (ObservationKind.CHECKED_ERROR, CAPTURING),
    Effect.UNSAFE: (ObservationKind.REFUSED, CAPTURING),
}


class CaptureRefused(RuntimeError):
    """CUDA would refuse this while capturing. ``str`` is CUDA's message, the operation and why.

    ``kind`` says what was seen; ``operation`` names the call, an ATen overload or a ``torch.cuda`` function.
    """

    def __init__(self, message: str, kind: ObservationKind, operation: str, why: str = "") -> None:
        because = f" ({operation}: {why})" if why else f" ({operation})"
        super().__init__(message + because)
        self.kind = kind
        self.operation = operation
        self.why = why


@dataclass(frozen=True, slots=True)
class Call:
    """One ATen call as a condition sees it."""

    operation: Operation
    args: tuple[object, ...]
    kwargs: dict[str, object]

    def value(self, name: str | None) -> object:
        """The argument ``name``, or the first one."""
        if name is None:
            return self.args[0] if self.args else None
        return self.operation.argument(name, self.args, self.kwargs)

    def tensor(self, name: str | None) -> torch.Tensor | None:
        """The argument ``name``, or the first one, if it is a tensor."""
        value = self.value(name)
        return value if isinstance(value, torch.Tensor) else None


Condition = Callable[[Call, str | None], bool]


def refusing_row(call: Call) -> AtenRow | None:
    """The first row of ``rules/aten.yaml`` under which CUDA refuses ``call``."""
    for row in call.operation.refusals:
        if CONDITIONS[row.when](call, row.argument):
            return row
    return None


def always(call: Call, argument: str | None) -> bool:
    """Whatever the arguments are."""
    return True


def absent(call: Call, argument: str | None) -> bool:
    """``argument`` was not passed."""
    return call.value(argument) is None


def checked_lengths(call: Call, argument: str | None) -> bool:
    """``segment_reduce`` with lengths, and without ``unsafe=True``."""
    return call.value("lengths") is not None and not call.value("unsafe")


def nonempty(call: Call, argument: str | None) -> bool:
    """The tensor has elements: without any no solver is called."""
    tensor = call.tensor(argument)
    return tensor is not None and tensor.numel() > 0


def larger_than_one(call: Call, argument: str | None) -> bool:
    """Matrices of more than one row, and at least one of them."""
    tensor = call.tensor(argument)
    return tensor is not None and tensor.numel() > 0 and tensor.shape[-1] > 1


def batched(call: Call, argument: str | None) -> bool:
    """More than one matrix, none of them empty."""
    tensor = call.tensor(argument)
    return tensor is not None and tensor.dim() > 2 and tensor.numel() > 0


def rectangular(call: Call, argument: str | None) -> bool:
    """Matrices that are not square, none of them empty."""
    tensor = call.tensor(argument)
    return tensor is not None and tensor.numel() > 0 and tensor.shape[-1] != tensor.shape[-2]


def same_shape(call: Call, argument: str | None) -> bool:
    """Both tensors have one shape: otherwise the answer is known on the host."""
    first, second = call.tensor(None), call.tensor(argument)
    return first is not None and second is not None and first.shape == second.shape


def equal_bounds(call: Call, argument: str | None) -> bool:
    """``histc`` with ``min == max``, its default."""
    return (call.value("min") or 0) == (call.value("max") or 0)


def device_value(call: Call, argument: str | None) -> bool:
    """The value is a tensor on the device."""
    tensor = call.tensor(argument)
    return tensor is not None and memory_of(tensor) is Memory.DEVICE


def host_scalar(call: Call, argument: str | None) -> bool:
    """Any 0-d tensor on the host."""
    return any(t.dim() == 0 and on_host(t) for t in tensors_in(call.args))


def host_tensor(call: Call, argument: str | None) -> bool:
    """Any host tensor among ``argument``."""
    return any(on_host(t) for t in tensors_in(call.value(argument)))


def host_positions(call: Call, argument: str | None) -> bool:
    """A host tensor among ``argument`` that is no mask."""
    return any(on_host(t) and t.dtype not in MASKS for t in tensors_in(call.value(argument)))


def mask_index(call: Call, argument: str | None) -> bool:
    """A mask on the device among the indices."""
    return any(t.dtype in MASKS and not on_host(t) for t in tensors_in(call.value(argument)))


def mask_index_of_values(call: Call, argument: str | None) -> bool:
    """A mask among the indices, with values that a masked fill cannot write."""
    return mask_index(call, argument) and not is_masked_fill(call)


def host_value_not_filled(call: Call, argument: str | None) -> bool:
    """A host number as the value, where a masked fill cannot write it."""
    value = call.tensor(argument)
    return value is not None and on_host(value) and not is_masked_fill(call)


def is_masked_fill(call: Call) -> bool:
    """``x[mask] = number``: torch turns it into a masked fill (``canDispatchToMaskedFill``)."""
    value = call.tensor("values")
    if value is None or value.numel() != 1 or not on_host(value) or call.value("accumulate"):
        return False
    masks = list(tensors_in(call.value("indices")))
    return len(masks) == 1 and masks[0].dtype in MASKS


def sorted_isin(call: Call, argument: str | None) -> bool:
    """Enough test elements for ``isin`` to sort (``aten/src/ATen/native/TensorCompare.cpp``)."""
    elements, tests = call.tensor("elements"), call.tensor("test_elements")
    if elements is None or tests is None:
        return False
    return tests.numel() >= int(10.0 * cast(float, elements.numel() ** 0.145))


def not_bfloat16(call: Call, argument: str | None) -> bool:
    """The tensor has another type than bfloat16."""
    tensor = call.tensor(argument)
    return tensor is not None and tensor.dtype is not torch.bfloat16


def on_host(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is in host memory, pinned or not."""
    return memory_of(tensor) in (Memory.HOST, Memory.PINNED)


CONDITIONS: Mapping[str, Condition] = {
    "always": always,
    "absent": absent,
    "checked-lengths": checked_lengths,
    "nonempty": nonempty,
    "larger-than-one": larger_than_one,
    "batched": batched,
    "rectangular": rectangular,
    "same-shape": same_shape,
    "equal-bounds": equal_bounds,
    "device-value": device_value,
    "host-scalar": host_scalar,
    "host-tensor": host_tensor,
    "host-positions": host_positions,
    "mask-index": mask_index,
    "mask-index-of-values": mask_index_of_values,
    "host-value-not-filled": host_value_not_filled,
    "sorted-isin": sorted_isin,
    "not-bfloat16": not_bfloat16,
}
