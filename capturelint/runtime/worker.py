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
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from capturelint.errors import CapturelintError
from capturelint.runtime.channel import Channel
from capturelint.runtime.protocol import Fault, Plan, Stage, decode_plan

PR_SET_PDEATHSIG = 1
HANG_SIGNAL = signal.SIGUSR1 if hasattr(signal, "SIGUSR1") else None


def main() -> None:
    """Serve one plan."""
    channel = Channel(int(sys.argv[1]))
    stacks = open(int(sys.argv[2]), "w")  # noqa: SIM115 - faulthandler needs it for the life of the process
    faulthandler.enable(stacks)
    if HANG_SIGNAL is not None:
        faulthandler.register(HANG_SIGNAL, stacks, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    die_with_parent(int(sys.argv[3]))
    plan = decode_plan(sys.stdin.buffer.readline())
    try:
        serve(plan, channel)
    except CapturelintError as error:
        channel.send(Fault(channel.now.stage, str(error), bucket=channel.now.bucket, step=channel.now.step))
    # The target may have left threads, handlers or a broken CUDA context that an orderly exit would wait for.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


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
    from capturelint.runtime import machine

    found = machine.find(plan.device)
    if isinstance(found, Fault):
        channel.send(found)
        return
    machine.limit_memory(found.device, plan.memory_limit_gib)
    channel.send(found)
    with device_context(found.device):
        from capturelint.runtime.service import run_plan

        run_plan(plan, found, channel)


def device_context(device: str) -> AbstractContextManager[object]:
    """Real CUDA as it is, or the emulator patched in under its name."""
    if device != "emulated":
        return nullcontext()
    from capturelint import emulator

    context: AbstractContextManager[object] = emulator.cuda()
    return context


def relative(path: str) -> str:
    """A path as the user would type it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


if __name__ == "__main__":
    main()
