"""Device memory that this process holds, as the driver tells it through NVML, which needs no context.

torch knows what its allocator took. What the context, kernels and instantiated graphs take is known to the driver
alone. The surprise: in a container the driver may not know this process by its number; then what the device held
before this process had a context is taken off what it holds, and other processes must hold still.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass

MAX_PROCESSES = 256
UNKNOWN = 1 << 63
"""NVML answers a number from here on where it may not tell a process's memory."""


class Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Process(ctypes.Structure):
    """``nvmlProcessInfo_t``, versions 2 and 3."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


@dataclass(frozen=True, slots=True)
class Meter:
    """Asks for the first visible device. ``others`` is what it held before this process had a context."""

    library: ctypes.CDLL
    device: ctypes.c_void_p
    others: int

    def nbytes(self) -> int:
        """What this process holds of the device."""
        own = self.own()
        return max(0, self.on_device() - self.others) if own is None else own

    def on_device(self) -> int:
        """What all processes hold."""
        memory = Memory()
        self.library.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(memory))
        return int(memory.used)

    def own(self) -> int | None:
        """What the driver charges to this process; ``None`` where it does not know it, or may not tell."""
        return self.by_process().get(os.getpid())

    def by_process(self) -> dict[int, int]:
        """What the driver charges to each process that it knows and may tell of."""
        count, found = ctypes.c_uint(MAX_PROCESSES), (Process * MAX_PROCESSES)()
        if self.library.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ctypes.byref(count), found):
            return {}
        return {each.pid: each.used for each in found[: count.value] if each.used < UNKNOWN}


def opened() -> Meter | None:
    """A meter, made before this process has a context; ``None`` where NVML is missing or does not tell."""
    try:
        library, driver = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
        device = first_device(library, driver)
    except (OSError, AttributeError):
        return None
    if device is None:
        return None
    others = Meter(library, device, 0).on_device()
    return Meter(library, device, others) if others else None


def first_device(library: ctypes.CDLL, driver: ctypes.CDLL) -> ctypes.c_void_p | None:
    """NVML's handle of the device that CUDA counts first; environment variables choose which that is."""
    number, bus, device = ctypes.c_int(), ctypes.create_string_buffer(32), ctypes.c_void_p()
    calls: tuple[Callable[[], int], ...] = (
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGet(ctypes.byref(number), 0),
        lambda: driver.cuDeviceGetPCIBusId(bus, len(bus), number),
        library.nvmlInit_v2,
        lambda: library.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(device)),
    )
    return None if any(call() for call in calls) else device
