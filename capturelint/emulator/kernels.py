"""Composite operations that do something else on CUDA than on a CPU, written again as CUDA does them.

torch takes such an operation apart in C++ by the real device, before a mode can see it. A CPU kernel registered for
the time of the context keeps it whole until the mode, which then runs the version below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


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


EMULATED: Mapping[str, Callable[..., Any]] = {"aten::one_hot.default": one_hot}


class Kernels:
    """The registrations of one context."""

    def __init__(self) -> None:
        self.library = torch.library.Library("aten", "IMPL")

    def install(self) -> None:
        """Register every kernel."""
        for name, kernel in EMULATED.items():
            self.library.impl(name.removeprefix("aten::").removesuffix(".default"), kernel, "CPU")

    def remove(self) -> None:
        """Take them back."""
        self.library._destroy()
