"""Recorded calls, and what runs them again: the same kernels on the same memory, without Python above ATen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from capturelint.emulator.generators import Generators
from capturelint.emulator.kernels import Kernel
from capturelint.emulator.memory import tensors_in


class RecordedCall(NamedTuple):
    """One call to run again. ``results`` are (position in the flattened result, where it belongs)."""

    kernel: Kernel
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Sequence[tuple[int, Any]]
    is_random: bool


def replay(calls: Sequence[RecordedCall], generators: Generators) -> None:
    """Run the calls again, and put their results where the capture had them."""
    with undispatched():
        if any(call.is_random for call in calls):
            with generators.lent():
                run(calls)
        else:
            run(calls)


def run(calls: Sequence[RecordedCall]) -> None:
    """The loop of ``replay``."""
    for call in calls:
        result = call.kernel(*call.args, **call.kwargs)
        if not call.results:
            continue
        if isinstance(result, torch.Tensor):
            call.results[0][1].copy_(result)
            continue
        flat = list(tensors_in(result))
        for position, target in call.results:
            target.copy_(flat[position])


@contextmanager
def undispatched() -> Iterator[None]:
    """Below modes, autograd and autocast, where a graph's kernels live."""
    # Not `_DisableTorchDispatch`: a kernel that is replaced by its fake needs a mode of its own.
    with _disable_current_modes(), torch._C._InferenceMode(True), torch._C._DisableAutocast():
        yield
