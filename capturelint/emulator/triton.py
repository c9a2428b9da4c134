"""Triton kernels: there is no GPU to launch them on, and one message says which kernel wanted one.

Triton itself would say that it found no driver. Its launchers are replaced where they are imported already, and by a
finder on ``sys.meta_path`` when they are imported within the context.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from capturelint.emulator.kernels import EmulationError
from capturelint.emulator.patches import Patches

LAUNCHERS: Mapping[str, str] = {"triton.runtime.jit": "JITFunction", "triton.runtime.autotuner": "Autotuner"}
"""Module -> its class whose ``run`` launches a kernel."""


class TritonLaunches(MetaPathFinder):
    """Makes every launch of a Triton kernel an ``EmulationError``."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches

    def install(self) -> None:
        """Replace the launchers now, or when they come."""
        for name in LAUNCHERS:
            if name in sys.modules:
                self.replace(sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Let imports alone."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual spec of a launcher's module, whose loader replaces the launcher; of others none."""
        if fullname not in LAUNCHERS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self.replace(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def replace(self, module: ModuleType) -> None:
        """Replace the launcher of ``module``."""
        launcher = getattr(module, LAUNCHERS[module.__name__], None)
        if launcher is not None:
            self.patches.set(launcher, "run", refusing_launch)


def refusing_launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """What a launch does on the emulated device."""
    raise EmulationError(
        f"Triton kernel `{name_of(kernel)}` runs on a GPU only, so the emulated device cannot run it; "
        "a `torch.library.custom_op` around it with a CPU or a fake implementation can be emulated"
    )


def name_of(kernel: Any) -> str:
    """What its author called it."""
    function: Callable[..., Any] | Any = getattr(kernel, "base_fn", None) or getattr(kernel, "fn", kernel)
    return str(getattr(function, "__name__", type(kernel).__name__))
