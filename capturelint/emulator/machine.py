"""The state of one emulated device: current stream, running capture, generators, and what recordings keep alive."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from capturelint.emulator.generators import Generators
from capturelint.emulator.ledger import Ledger
from capturelint.emulator.operations import Operations
from capturelint.emulator.pool import Pool
from capturelint.emulator.refusal import KINDS, OFFSET_OUTSIDE, PREVIOUS, CaptureRefused
from capturelint.emulator.streams import EmulatedStream, Streams
from capturelint.vocabulary import Effect, ObservationKind

if TYPE_CHECKING:
    from capturelint.emulator.recording import Recording


class Machine:
    """Everything that ``with cuda():`` creates and forgets again. ``unfit`` is the operation refused in a capture."""

    def __init__(self, poison_freed: bool = True) -> None:
        self.recording: Recording | None = None
        self.unfit: str | None = None
        self.operations = Operations(self)
        self.streams = Streams(self)
        self.generators = Generators(self)
        self.ledger = Ledger(poison_freed)
        self.handles = itertools.count(1)
        self.pools: WeakValueDictionary[tuple[int, int], Pool] = WeakValueDictionary()
        self.threads = threading.local()

    @property
    def downloading(self) -> bool:
        """Whether this thread asked for a copy on the host, which torch takes for a copy within it."""
        return getattr(self.threads, "downloading", False)

    @downloading.setter
    def downloading(self, value: bool) -> None:
        self.threads.downloading = value

    def pool(self, handle: tuple[int, int]) -> Pool:
        """The memory behind a handle: the same one as long as a graph or a tensor needs it."""
        return self.pools.setdefault(handle, Pool())

    @property
    def in_cpu_check(self) -> bool:
        """Whether this thread is in an operation whose reads torch does on a CPU only."""
        return getattr(self.threads, "in_cpu_check", False)

    @in_cpu_check.setter
    def in_cpu_check(self, value: bool) -> None:
        self.threads.in_cpu_check = value

    @property
    def in_kernel(self) -> bool:
        """Whether this thread runs the CPU implementation of somebody's own operation, which expects CPU tensors."""
        return getattr(self.threads, "in_kernel", False)

    @in_kernel.setter
    def in_kernel(self, value: bool) -> None:
        self.threads.in_kernel = value

    @contextmanager
    def as_cpu(self) -> Iterator[None]:
        """Let tensors of the device say that they are a CPU's."""
        before, self.in_kernel = self.in_kernel, True
        try:
            yield
        finally:
            self.in_kernel = before

    @property
    def is_capturing(self) -> bool:
        """Whether work on the current stream is being captured."""
        recording = self.recording
        return recording is not None and self.streams.current in recording.streams

    def must_not_capture(
        self, effect: Effect, operation: str, stream: EmulatedStream | None = None, why: str = ""
    ) -> None:
        """Refuse ``operation`` if a capture runs (on ``stream``, if one is named)."""
        recording = self.recording
        if recording is None or (stream is not None and not stream.is_capturing):
            return
        kind, message = KINDS[effect]
        raise recording.refuse(message, kind, operation, why)

    def must_be_fit(self, operation: str) -> None:
        """A refused capture leaves the process unfit: no other capture in it can be trusted."""
        if self.unfit is not None:
            raise CaptureRefused(PREVIOUS, ObservationKind.REFUSED, operation, f"after {self.unfit}")

    def must_draw(self, operation: str) -> None:
        """After a refused capture the generator stays in capture mode (measured on an H200, torch 2.11)."""
        if self.unfit is not None and self.recording is None:
            raise CaptureRefused(OFFSET_OUTSIDE, ObservationKind.REFUSED, operation, f"after {self.unfit}")
