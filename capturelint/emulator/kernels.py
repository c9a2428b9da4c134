"""Where CUDA's kernels and a CPU's differ: types that a CPU lacks, and composites that ask which device they are on.

torch takes a composite operation apart in C++ by the real device, before a mode can see it. A CPU kernel registered
for the time of the context keeps it whole until the mode, which then runs the version below.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from capturelint.emulator.machine import Machine

NOT_FOR_TYPE = re.compile(r"not implemented for '(\w+)'")
WIDER: Mapping[str, tuple[torch.dtype, torch.dtype]] = {
    "Half": (torch.float16, torch.float32),
    "BFloat16": (torch.bfloat16, torch.float32),
    "Bool": (torch.bool, torch.float32),
    "Byte": (torch.uint8, torch.float64),
    "Char": (torch.int8, torch.float64),
    "Short": (torch.int16, torch.float64),
    "Int": (torch.int32, torch.float64),
    "Long": (torch.int64, torch.float64),
    "ComplexHalf": (torch.complex32, torch.complex64),
}


class EmulationError(RuntimeError):
    """Something that cannot be emulated on a CPU: a kernel without a CPU or Python implementation."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """An overload's CPU kernel; a type that it lacks is computed in a wider one and rounded back."""

    function: Any
    name: str
    machine: Machine

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it. Raises ``EmulationError`` if a CPU cannot."""
        try:
            return self.function(*args, **kwargs)
        except (NotImplementedError, EmulationError) as error:
            return self.instead(error, args, kwargs)

    def instead(self, error: Exception, args: Any, kwargs: Any) -> Any:
        """What stands in for a kernel that raised ``error``."""
        missing = NOT_FOR_TYPE.search(str(error)) if isinstance(error, NotImplementedError) else None
        if missing is not None and missing[1] in WIDER:
            return self.widened(*WIDER[missing[1]], args, kwargs)
        return self.faked(args, kwargs, error)

    def faked(self, args: Any, kwargs: Any, error: Exception) -> Any:
        """Only the shapes, from the operator's fake implementation; the values are zeros, and said to be."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        with self.machine.as_cpu(), FakeTensorMode() as mode:
            fake_args, fake_kwargs = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            try:
                made = self.function(*fake_args, **fake_kwargs)
            except (NotImplementedError, RuntimeError):
                if isinstance(error, EmulationError):
                    raise error from None
                raise EmulationError(
                    f"{self.name} has neither a CPU nor a fake implementation, so the emulated device cannot run it"
                ) from error
        warnings.warn(f"{self.name} has no CPU implementation: its results are zeros of the right shape", stacklevel=2)
        return tree_map_only(
            torch.Tensor,
            lambda fake: torch.zeros(fake.shape, dtype=fake.dtype).as_strided(fake.size(), fake.stride()),
            made,
        )

    def widened(self, narrow: torch.dtype, wide: torch.dtype, args: Any, kwargs: Any) -> Any:
        """Compute in ``wide`` and write and return in ``narrow``."""
        written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def widen(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dtype is not narrow:
                return tensor
            wider = tensor.to(wide)
            written[id(wider)] = (wider, tensor)
            return wider

        def restore(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in written:
                return written[id(tensor)][1].copy_(tensor)
            return tensor.to(narrow) if tensor.dtype is wide else tensor

        result = self.function(*tree_map_only(torch.Tensor, widen, args), **tree_map_only(torch.Tensor, widen, kwargs))
        return tree_map_only(torch.Tensor, restore, result)


def foreign(function: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
    """An operation that is not torch's own: one in Python may ask where its tensors live, and is told: on a CPU."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with machine.as_cpu():
            return function(*args, **kwargs)

    return call


def one_hot(indices: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """``one_hot`` without the CPU's check that every index is in range (``aten/src/ATen/native/Onehot.cpp``)."""
    if indices.numel() == 0:
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return torch.empty(*indices.shape, num_classes, dtype=indices.dtype, device=indices.device)
    if num_classes == -1:
        num_classes = int(indices.max().item()) + 1
    made = torch.zeros(*indices.shape, num_classes, dtype=indices.dtype, device=indices.device)
    return made.scatter_(-1, indices.unsqueeze(-1), 1)


COMPOSITES: Mapping[str, Callable[..., Any]] = {"aten::one_hot.default": one_hot}


def python_body(overload: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """What a ``torch.library.custom_op`` runs: its version for CUDA, else for any device, else for a CPU.

    A body that launches a Triton kernel gives way to the version for a CPU.
    """
    defined = OPDEFS.get(overload._schema.name)
    if defined is None or not defined._backend_fns:
        return None
    found = [defined._backend_fns.get(device) for device in ("cuda", None, "cpu")]
    first, *others = [body for body in found if body is not None]

    def body(*args: Any, **kwargs: Any) -> Any:
        try:
            return first(*args, **kwargs)
        except EmulationError:
            if not others:
                raise
            return others[-1](*args, **kwargs)

    return body


class Registrations:
    """CPU kernels registered for one context."""

    def __init__(self) -> None:
        self.library = torch.library.Library("aten", "IMPL")

    def install(self) -> None:
        """Keep every composite whole."""
        for name, kernel in COMPOSITES.items():
            self.library.impl(name.removeprefix("aten::").removesuffix(".default"), kernel, "CPU")

    def remove(self) -> None:
        """Let torch take them apart again."""
        self.library._destroy()
