"""``python -m capturelint.runtime.worker FD``: the process that the target runs in.

It reads a plan from standard input, answers over the descriptor FD, and may die at any moment: the parent reports
what was being done. One worker serves all buckets of a healthy target and builds its state once.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NoReturn

from capturelint.errors import CapturelintError, DeviceError
from capturelint.runtime.channel import Channel
from capturelint.runtime.meter import Meter
from capturelint.runtime.observations import Machine
from capturelint.runtime.protocol import Farewell, Fault, Peak, Plan, Stage, decode_plan

PR_SET_PDEATHSIG = 1
HANG_SIGNAL = signal.SIGUSR1 if hasattr(signal, "SIGUSR1") else None


def main() -> None:
    """Serve one plan."""
    channel = Channel(int(sys.argv[1]))
    stacks = open(int(sys.argv[2]), "w")  # noqa: SIM115 - faulthandler needs it for the life of the process
    faulthandler.enable(stacks)
    if HANG_SIGNAL is not None:
        faulthandler.register(HANG_SIGNAL, stacks, all_threads=True)
    os._exit = leaving(stacks, os._exit)  # type: ignore[assignment]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    die_with_parent(int(sys.argv[3]))
    plan = decode_plan(sys.stdin.buffer.readline())
    try:
        serve(plan, channel)
    except CapturelintError as error:
        at = channel.now
        channel.send(Fault(at.stage, str(error), isinstance(error, DeviceError), at.bucket, at.step))
    channel.send(Farewell())
    for stream in (sys.stdout, sys.stderr):
        # The target may have closed them, or put something else in their place.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # The target may have left threads, handlers or a broken CUDA context that an orderly exit would wait for.
    os._exit(0)


def leaving(stacks: IO[str], leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    """An ``os._exit`` that says first where it was called; what the target forked leaves as it wants to."""
    worker = os.getpid()

    def leave_with_stack(status: int) -> NoReturn:
        if os.getpid() == worker:
            faulthandler.dump_traceback(stacks, all_threads=False)
        leave(status)

    return leave_with_stack


def die_with_parent(parent: int) -> None:
    """Ask Linux to end this process when its parent is gone, even by SIGKILL; it may be gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def serve(plan: Plan, channel: Channel) -> None:
    """Find the device, then verify the buckets on it."""
    channel.enter(Stage.START)
    # Imported here so that the parent's pipe is open and the crash handlers are set before torch loads.
    from capturelint.runtime import machine, meter

    gauge = meter.opened() if plan.device != "emulated" else None
    found = machine.find(plan.device, gauge is not None)
    if isinstance(found, Fault):
        channel.send(found)
        return
    with limited(plan, found, gauge, channel), device_context(found.device):
        from capturelint.runtime.service import run_plan

        channel.send(found)
        run_plan(plan, found, channel)


@contextmanager
def limited(plan: Plan, found: Machine, gauge: Meter | None, channel: Channel) -> Iterator[None]:
    """The plan's memory limit kept to while entered. Raises ``DeviceError`` where it leaves the target nothing."""
    from capturelint.runtime import device_memory, machine

    if found.device != "cuda":
        machine.limit_host_memory(plan.memory_limit_gib)
        yield
        return
    limit = None if plan.memory_limit_gib is None else int(plan.memory_limit_gib * machine.GIB)
    memory = device_memory.metered(gauge, limit, lambda peak: channel.send(Peak(peak, channel.now.bucket)))
    if limit is not None:
        device_memory.load_libraries()
        if shortage := memory.shortage():
            raise DeviceError(shortage)
    memory.look()
    channel.look = memory.look
    with memory.watching_graphs():
        yield


@contextmanager
def device_context(device: str) -> Iterator[None]:
    """Real CUDA as it is, or the emulator patched in under its name."""
    if device != "emulated":
        yield
        return
    from capturelint import emulator

    with emulator.cuda():
        yield


def relative(path: str) -> str:
    """A path as the user would type it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


if __name__ == "__main__":
    main()
