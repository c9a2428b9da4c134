"""Triton kernels: Triton's interpreter runs them, where the program asked for it; else one message names the kernel.

With ``TRITON_INTERPRET=1`` set before Triton is imported a launch is a call like any other, captured and replayed, and
modes that say ``sees_launches`` are shown it. An autotuner takes the first configuration, and is refused where it would
have to time them in a capture. Without the interpreter there is no GPU to launch on, and Triton would say that it found
no driver. The methods are replaced where they are imported already, and by a finder on ``sys.meta_path`` when they are
imported within the context.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _len_torch_dispatch_stack
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode_temporarily

from capturelint.emulator.kernels import EmulationError
from capturelint.emulator.mode import EmulatedDevice
from capturelint.emulator.operations import Operation, launch_of
from capturelint.emulator.patches import Patches
from capturelint.emulator.stores import stored_parameters
from capturelint.vocabulary import Effect

if TYPE_CHECKING:
    from capturelint.emulator.machine import Machine

NO_TIME = [0.0, 0.0, 0.0]
"""The quantiles that an autotuner compares: where all are equal it takes the first configuration."""


class TritonLaunches(MetaPathFinder):
    """Makes every launch of a Triton kernel a call of the device, or an ``EmulationError``."""

    def __init__(self, machine: Machine, patches: Patches) -> None:
        self.machine = machine
        self.patches = patches
        self.tuned: dict[int, tuple[Any, dict[Any, Any]]] = {}
        self.stored: dict[Callable[..., Any], frozenset[str] | None] = {}

    def install(self) -> None:
        """Replace the methods now, or when they come."""
        for name in REPLACED:
            if name in sys.modules:
                self.replace(sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Let imports alone, and autotuners forget what was chosen here."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for tuner, before in self.tuned.values():
            tuner.cache.clear()
            tuner.cache.update(before)
        self.tuned.clear()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual spec of such a module, whose loader replaces its method; of others none."""
        if fullname not in REPLACED:
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
        """Replace the method of ``module``."""
        name, method, replacement = REPLACED[module.__name__]
        owner = getattr(module, name, None)
        if owner is not None:
            self.patches.set(owner, method, replacement(self, getattr(owner, method)))

    def interpreted(self, original: Callable[..., None]) -> Callable[..., None]:
        """A launch that Triton's interpreter runs, on the device's memory and in the order of its other calls."""

        def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
            names, values = tuple(kwargs), (*args, *kwargs.values())

            def run(*values: Any) -> None:
                positional, by_name = values[: len(args)], values[len(args) :]
                with _disable_current_modes(), torch.no_grad():
                    original(executor, *positional, **dict(zip(names, by_name, strict=True)))

            operation = launch_of(f"Triton kernel `{name_of(executor)}`", run, self.machine, values)
            parameters = list(inspect.signature(executor.fn).parameters)
            Launch(self, executor, operation, (*parameters[: len(args)], *names))(*values)

        return launch

    def untimed(self, original: Callable[..., list[float]]) -> Callable[..., list[float]]:
        """What an autotuner measures of a configuration: nothing. A capture forbids it, since timing waits."""

        def bench(tuner: Any, *args: Any, config: Any, **options: Any) -> list[float]:
            why = "no configuration is chosen for these arguments yet, and timing them waits for the device"
            self.machine.must_not_capture(Effect.SYNCHRONIZE, f"autotuner of Triton kernel `{name_of(tuner)}`", why=why)
            self.tuned.setdefault(id(tuner), (tuner, dict(tuner.cache)))
            return NO_TIME

        return bench


class Launch:
    """One launch, which is shown to modes as a call of an operator is. Its arguments are all given by position."""

    def __init__(self, launches: TritonLaunches, executor: Any, operation: Operation, names: Sequence[str]) -> None:
        self.launches = launches
        self.executor = executor
        self.operation = operation
        self.names = names

    def __str__(self) -> str:
        return f"triton.{name_of(self.executor)}"

    @property
    def _schema(self) -> Any:
        """Which arguments may be written, as operators say it."""
        known = self.launches.stored
        if self.executor.fn not in known:
            known[self.executor.fn] = stored_parameters(self.executor.fn)
        stored = known[self.executor.fn]
        kinds = ["Tensor(a!)" if stored is None or name in stored else "Any" for name in self.names]
        declared = ", ".join(f"{kind} {name}" for kind, name in zip(kinds, self.names, strict=True))
        return torch._C.parse_schema(f"triton::{name_of(self.executor)}({declared}) -> ()")

    def __call__(self, *args: Any) -> Any:
        """Show it to the innermost mode that wants to see it, or run it on the device."""
        if not _len_torch_dispatch_stack():
            return EmulatedDevice(self.launches.machine).run(self.operation, args, {})
        with _pop_mode_temporarily() as mode:
            if isinstance(mode, EmulatedDevice):
                return mode.run(self.operation, args, {})
            return mode.__torch_dispatch__(self, (), args, {}) if getattr(mode, "sees_launches", False) else self(*args)


def refusing(launches: TritonLaunches, original: object) -> Callable[..., Any]:
    """What stands for a launch that nothing here can run."""
    return refusing_launch


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


REPLACED: Mapping[str, tuple[str, str, Callable[[TritonLaunches, Any], Callable[..., Any]]]] = {
    "triton.runtime.jit": ("JITFunction", "run", refusing),
    "triton.runtime.autotuner": ("Autotuner", "_bench", TritonLaunches.untimed),
    "triton.runtime.interpreter": ("GridExecutor", "__call__", TritonLaunches.interpreted),
}
"""Module -> its class, the method that launches a kernel or times one, and what replaces that."""
