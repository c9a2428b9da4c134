"""Triton kernels: Triton's interpreter runs them, where the program asked for it; else one message names the kernel.

With ``TRITON_INTERPRET=1`` set before Triton is imported a launch is a call like any other, captured and replayed.
Without it there is no GPU to launch on, and Triton itself would say that it found no driver. The launchers are replaced
where they are imported already, and by a finder on ``sys.meta_path`` when they are imported within the context.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from capturelint.emulator.kernels import EmulationError
from capturelint.emulator.mode import EmulatedDevice
from capturelint.emulator.operations import launch_of
from capturelint.emulator.patches import Patches

if TYPE_CHECKING:
    from capturelint.emulator.machine import Machine

LAUNCHERS: Mapping[str, tuple[str, str]] = {
    "triton.runtime.jit": ("JITFunction", "run"),
    "triton.runtime.autotuner": ("Autotuner", "run"),
    "triton.runtime.interpreter": ("GridExecutor", "__call__"),
}
"""Module -> its class and the method that launches a kernel."""


class TritonLaunches(MetaPathFinder):
    """Makes every launch of a Triton kernel a call of the device, or an ``EmulationError``."""

    def __init__(self, machine: Machine, patches: Patches) -> None:
        self.machine = machine
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
        name, method = LAUNCHERS[module.__name__]
        launcher = getattr(module, name, None)
        if launcher is None:
            return
        interpreted = interpreted_launch(self.machine, getattr(launcher, method)) if method == "__call__" else None
        self.patches.set(launcher, method, interpreted or refusing_launch)


def interpreted_launch(machine: Machine, original: Callable[..., None]) -> Callable[..., None]:
    """A launch that Triton's interpreter runs, on the device's memory and in the order of its other calls."""

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        names, values = tuple(kwargs), (*args, *kwargs.values())

        def run(*values: Any) -> None:
            positional, by_name = values[: len(args)], values[len(args) :]
            original(executor, *positional, **dict(zip(names, by_name, strict=True)))

        operation = launch_of(f"Triton kernel `{name_of(executor)}`", run, machine, values)
        with _disable_current_modes(), torch.no_grad():
            EmulatedDevice(machine).run(operation, values, {})

    return launch


def refusing_launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """What a launch does on the emulated device."""
    raise EmulationError(
        f"Triton kernel `{name_of(kernel)}` runs on a GPU only, so the emulated device cannot run it; "
        "with TRITON_INTERPRET=1 set before Triton is imported its interpreter runs the kernel, and a "
        "`torch.library.custom_op` around it with a CPU or a fake implementation is run instead"
    )


def name_of(kernel: Any) -> str:
    """What its author called it."""
    function: Callable[..., Any] | Any = getattr(kernel, "base_fn", None) or getattr(kernel, "fn", kernel)
    return str(getattr(function, "__name__", type(kernel).__name__))
