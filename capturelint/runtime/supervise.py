"""Workers from the outside: start one, listen, notice that it hangs or died, start the next, leave none behind.

Each worker leads a process group of its own, so that Ctrl-C reaches this process alone and everything that the
target forked can be ended with it. The surprise: a worker that hangs is asked for its stack by a signal whose
handler is C code, so the line is known even when Python never runs again.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from capturelint.runtime.observations import Machine, Spot
from capturelint.runtime.protocol import Farewell, Message, Plan, Progress, Stage, decode, encode

STACK_LINE = re.compile(r'^  File "(?P<path>.+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
POLL_S = 0.2
STACK_WAIT_S = 1.0
START_S = 120.0
"""Importing torch is no fault of the target, however short its time-out and busy the machine."""

GIB = 1 << 30
FILLING = 1 / 8
"""What takes this part of the memory limit within one time-out ends at the limit, however slow the machine is."""
ENDING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended: ``reason`` is ``done``, ``hang``, ``memory`` or ``died``.

    ``spots`` is the stack at that moment, entry first, of every file; ``output`` the last lines it printed.
    """

    reason: str
    last: Progress
    status: int | None = None
    spots: tuple[Spot, ...] = ()
    output: str = ""

    @property
    def words(self) -> str:
        """``killed by SIGSEGV`` or ``exited with status 3``."""
        if self.status is not None and self.status < 0:
            name = signal.Signals(-self.status).name
            hint = " (as the system does when memory runs out)" if name == "SIGKILL" else ""
            return f"was killed by {name}{hint}"
        return f"exited with status {self.status}"


@dataclass(frozen=True, slots=True)
class Worker:
    """A running worker process and the files it writes to."""

    process: subprocess.Popen[bytes]
    messages: int
    stacks: IO[bytes]
    output: IO[bytes]


@contextlib.contextmanager
def started(plan: Plan) -> Iterator[Worker]:
    """A worker with its plan; its whole process group is gone afterwards."""
    receive, send = os.pipe()
    with tempfile.TemporaryFile() as stacks, tempfile.TemporaryFile() as output:
        # A signal between the fork and the `try` would leave a worker that nobody knows.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            process = spawn(send, stacks, output)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            raise
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            os.close(send)
            hand_over(process, plan)
            yield Worker(process, receive, stacks, output)
        finally:
            end_group(process)
            os.close(receive)


def spawn(send: int, stacks: IO[bytes], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """The worker's process; it lets the signals through again that are blocked here."""
    return subprocess.Popen(
        [sys.executable, "-m", "capturelint.runtime.worker", str(send), str(stacks.fileno()), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=(send, stacks.fileno()),
        start_new_session=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    """The worker finds the package that this process runs."""
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def hand_over(process: subprocess.Popen[bytes], plan: Plan) -> None:
    """Write the plan; a worker that is dead already is noticed later."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(encode(plan))
        process.stdin.close()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the worker and everything it forked."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def listen(worker: Worker, timeout_s: float, memory_limit_gib: float | None) -> Iterator[Message | Ended]:
    """Every message, then how the worker ended. Silence for ``timeout_s`` is a hang, unless memory fills meanwhile.

    The memory limit counts from what the worker held when it had found its device: libraries are not the target's.
    """
    buffer, last, heard = b"", Progress(Stage.START), time.monotonic()
    held, marked, is_over = 0, None, False
    limit = math.inf if memory_limit_gib is None else memory_limit_gib * GIB
    with selectors.DefaultSelector() as selector:
        selector.register(worker.messages, selectors.EVENT_READ)
        while True:
            if selector.select(POLL_S):
                received = os.read(worker.messages, 1 << 16)
                if not received:
                    yield ended(worker, last, is_over)
                    return
                heard, marked = time.monotonic(), None
                *lines, buffer = (buffer + received).split(b"\n")
                for message in map(decode, lines):
                    if message is None:
                        continue
                    last = message if isinstance(message, Progress) else last
                    is_over = is_over or isinstance(message, Farewell)
                    held = own_bytes(worker.process.pid) if isinstance(message, Machine) else held
                    yield message
            elif worker.process.poll() is not None:
                # Something that the target forked still holds the pipe open.
                yield ended(worker, last, is_over)
                return
            taken = own_bytes(worker.process.pid) - held
            marked = taken if marked is None else marked
            if taken > limit and last.stage is not Stage.START:
                yield Ended("memory", last, spots=stack_of_living(worker), output=tail(worker.output))
                return
            if time.monotonic() - heard > (max(timeout_s, START_S) if last.stage is Stage.START else timeout_s):
                if taken - marked < FILLING * limit:
                    yield Ended("hang", last, spots=stack_of_living(worker), output=tail(worker.output))
                    return
                heard, marked = time.monotonic(), taken


def ended(worker: Worker, last: Progress, is_over: bool) -> Ended:
    """The end of a worker that closed its pipe; ``is_over`` if it said so before."""
    status = worker.process.wait()
    reason = "done" if is_over else "died"
    return Ended(reason, last, status, read_stack(worker.stacks), tail(worker.output))


def stack_of_living(worker: Worker) -> tuple[Spot, ...]:
    """Ask a worker that no longer answers where it is."""
    with contextlib.suppress(ProcessLookupError):
        worker.process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + STACK_WAIT_S
    while time.monotonic() < deadline:
        time.sleep(POLL_S / 4)
        if spots := read_stack(worker.stacks):
            return spots
    return ()


def read_stack(stacks: IO[bytes]) -> tuple[Spot, ...]:
    """What faulthandler wrote, entry first; it writes the innermost call first."""
    stacks.seek(0)
    text = stacks.read().decode(errors="replace")
    found = [Spot(match["path"], int(match["line"]), match["name"]) for match in STACK_LINE.finditer(text)]
    return tuple(reversed(found))


def tail(output: IO[bytes], lines: int = 5) -> str:
    """The last lines that a worker printed."""
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").splitlines()[-lines:])


def spare_gib() -> float | None:
    """Nine tenths of the host memory that is free now; ``None`` where the system does not say."""
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = next((int(row.split()[1]) for row in rows if row.startswith("MemAvailable:")), None)
    return None if free is None else 0.9 * free * 1024 / GIB


def own_bytes(pid: int) -> int:
    """Memory that a process holds and no file stands for, as it does for libraries; 0 where the system does not say."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
