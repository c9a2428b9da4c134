"""``with cuda():`` puts the emulated device under torch, and takes it away again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch._library import simple_registry

from capturelint.emulator.api import CudaPatches
from capturelint.emulator.kernels import Registrations
from capturelint.emulator.machine import Machine
from capturelint.emulator.memory import Storages
from capturelint.emulator.mode import EmulatedDevice
from capturelint.emulator.patches import Patches
from capturelint.emulator.tensors import TensorPatches
from capturelint.emulator.triton import TritonLaunches

RULE = "find_torch_dispatch_rule"


@contextmanager
def cuda(*, poison_freed: bool = True) -> Iterator[Machine]:
    """Run the body with an emulated CUDA device.

    Inside, ``"cuda"`` is a device, and ``torch.cuda`` answers for it. Memory that a graph points at and the program has
    freed is overwritten with NaN before the next replay; without ``poison_freed`` it keeps its values until another
    tensor gets it, as on a GPU that nobody else uses. Raises RuntimeError if a device is open already.
    """
    if hasattr(torch.UntypedStorage, "_capturelint_memory"):
        raise RuntimeError("an emulated device is already open in this process")
    machine, patches, registrations = Machine(poison_freed), Patches(), Registrations()
    triton = TritonLaunches(machine, patches)
    lifts = torch._C._only_lift_cpu_tensors()
    Storages.install()
    try:
        registrations.install()
        torch._C._set_only_lift_cpu_tensors(True)
        TensorPatches(machine, patches).install()
        CudaPatches(machine, patches).install()
        triton.install()
        patches.set(threading.Thread, "start", emulated_start(machine, threading.Thread.start))
        if hasattr(simple_registry, RULE):
            patches.set(simple_registry, RULE, without_rules(getattr(simple_registry, RULE)))
        with EmulatedDevice(machine):
            yield machine
    finally:
        triton.remove()
        patches.undo()
        registrations.remove()
        torch._C._set_only_lift_cpu_tensors(lifts)
        Storages.remove()


def without_rules(find: Callable[[object, type], object]) -> Callable[[object, type], object]:
    """What torch asks before each call that a mode sees, answered at once for the device's mode: it has no rules."""

    def find_rule(operation: object, mode: type) -> object:
        return None if mode is EmulatedDevice else find(operation, mode)

    return find_rule


def emulated_start(machine: Machine, start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """``Thread.start`` with the device, whatever class the thread is of: modes belong to a thread."""

    def call(thread: threading.Thread) -> None:
        run = thread.run

        def run_on_device() -> None:
            with EmulatedDevice(machine):
                run()

        thread.run = run_on_device  # type: ignore[method-assign]
        start(thread)

    return call
