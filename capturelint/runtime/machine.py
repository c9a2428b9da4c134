"""What this machine can run on, and how much of the host's memory the target may take."""

from __future__ import annotations

import subprocess
import sys

import torch

from capturelint.runtime.observations import Machine
from capturelint.runtime.protocol import Fault, Stage

GIB = 1 << 30


def find(wanted: str, tells_memory: bool = False) -> Machine | Fault:
    """The device to use, with a context. ``auto`` is ``cuda`` where there is one."""
    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        built = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        return Fault(Stage.START, f"no GPU: {built} ({torch.__version__}); use --device emulated", machine=True)
    if has_gpu and wanted != "emulated":
        # What a context takes of the host is there before the target's memory is counted.
        torch.zeros(1, device="cuda")
        return Machine("cuda", torch.__version__, torch.cuda.get_device_name(), driver(), tells_memory)
    return Machine("emulated", torch.__version__)


def driver() -> str | None:
    """The version of the NVIDIA driver, where it can be asked."""
    ask = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        said = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=20).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return said[0] if said else None


def limit_host_memory(gib: float | None) -> None:
    """Let an allocation beyond the limit fail in the target's own line."""
    if gib is not None and sys.platform == "linux":
        import resource

        limit = address_space() + int(gib * GIB)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def address_space() -> int:
    """Bytes of address space in use: torch alone maps a few GiB that it never touches."""
    import resource

    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()
