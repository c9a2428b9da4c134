"""Streams and events, as far as a capture can tell them apart.

Work runs at once and in program order, so a stream is a name and a counter of what was put on it. That is enough to
say which streams a capture has spread to, and which of them it did not wait for in the end.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING

import torch

from capturelint.emulator.refusal import CaptureRefused
from capturelint.vocabulary import Effect, ObservationKind

if TYPE_CHECKING:
    from capturelint.emulator.machine import Machine

DEVICE = torch.device("cuda", 0)
ISOLATION = "CUDA error: dependency created on uncaptured work in another stream"


class Streams:
    """The streams of one context and which of them is current, in each thread as on CUDA."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.numbers = itertools.count(1)
        self.default = EmulatedStream(machine, 0)
        self.threads = threading.local()

    @property
    def current(self) -> EmulatedStream:
        """The current stream of this thread."""
        return getattr(self.threads, "current", self.default)

    @current.setter
    def current(self, stream: EmulatedStream) -> None:
        self.threads.current = stream

    @property
    def entered(self) -> list[EmulatedStream]:
        """The streams that this thread's ``with`` statements will return to."""
        stack: list[EmulatedStream] = self.threads.__dict__.setdefault("entered", [])
        return stack

    def make(self) -> EmulatedStream:
        """A new stream."""
        return EmulatedStream(self.machine, next(self.numbers))


class EmulatedStream:
    """One stream. ``work`` counts what was put on it; ``seen`` is how much of each other stream it waited for."""

    device_index = 0
    device_type = 1  # c10::DeviceType::CUDA
    device = DEVICE

    def __init__(self, machine: Machine, number: int, priority: int = 0) -> None:
        self.machine = machine
        self.stream_id = number
        self.priority = priority
        self.work = 0
        self.seen: dict[EmulatedStream, int] = {}

    @property
    def cuda_stream(self) -> int:
        """The handle."""
        return self.stream_id

    _as_parameter_ = cuda_stream

    @property
    def is_capturing(self) -> bool:
        """Whether the running capture has spread to this stream."""
        recording = self.machine.recording
        return recording is not None and self in recording.streams

    def wait_event(self, event: EmulatedEvent) -> None:
        """Put what was recorded by ``event`` before what follows here."""
        recording = self.machine.recording
        if event.stream is None:
            return
        if recording is not None and event.capture is recording:
            recording.streams.add(self)
            for stream, work in {**event.seen, event.stream: event.work}.items():
                self.seen[stream] = max(work, self.seen.get(stream, 0))
        elif recording is not None and self.is_capturing:
            raise recording.refuse(
                ISOLATION, ObservationKind.REFUSED, "Stream.wait_event", "recorded outside the capture"
            )

    def wait_stream(self, stream: EmulatedStream) -> None:
        """Wait for everything that is on ``stream``."""
        self.wait_event(stream.record_event())

    def record_event(self, event: EmulatedEvent | None = None) -> EmulatedEvent:
        """Record ``event``, or a new one, here."""
        event = event if event is not None else EmulatedEvent(self.machine)
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done: always, outside a capture."""
        self.machine.must_not_capture(Effect.QUERY, "Stream.query", self)
        return True

    def synchronize(self) -> None:
        """Wait for all work."""
        self.machine.must_not_capture(Effect.SYNCHRONIZE, "Stream.synchronize", self)

    def __enter__(self) -> EmulatedStream:
        streams = self.machine.streams
        streams.entered.append(streams.current)
        streams.current = self
        return self

    def __exit__(self, *error: object) -> None:
        streams = self.machine.streams
        streams.current = streams.entered.pop()

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.stream_id:#x}>"


class EmulatedEvent:
    """One event: where it was recorded and how much work lay before it."""

    device = DEVICE

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.stream: EmulatedStream | None = None
        self.capture: object | None = None
        self.work = 0
        self.seen: dict[EmulatedStream, int] = {}
        self.at_s = 0.0

    def record(self, stream: EmulatedStream | None = None) -> None:
        """Remember what is on ``stream``."""
        stream = stream if stream is not None else self.machine.streams.current
        self.stream, self.work, self.seen = stream, stream.work, dict(stream.seen)
        self.capture = self.machine.recording if stream.is_capturing else None
        self.at_s = time.perf_counter()

    def wait(self, stream: EmulatedStream | None = None) -> None:
        """Make ``stream`` wait for this event."""
        (stream if stream is not None else self.machine.streams.current).wait_event(self)

    def query(self) -> bool:
        """Whether all work before it is done: always, outside a capture."""
        self.refuse_in_capture(Effect.QUERY, "Event.query")
        return True

    def synchronize(self) -> None:
        """Wait for all work before it."""
        self.refuse_in_capture(Effect.SYNCHRONIZE, "Event.synchronize")

    def refuse_in_capture(self, effect: Effect, operation: str) -> None:
        """An event recorded by a capture cannot be asked, and none can where the capture's error mode forbids it."""
        recording = self.machine.recording
        if recording is not None and recording.forbids_unsafe_calls():
            self.machine.must_not_capture(effect, operation)
        if self.capture is not None:
            raise CaptureRefused(
                "CUDA error: operation not permitted on an event last recorded in a capturing stream",
                ObservationKind.SYNCHRONISED,
                operation,
            )

    def elapsed_time(self, end: EmulatedEvent) -> float:
        """Milliseconds of this machine, not of a GPU, between two events."""
        return (end.at_s - self.at_s) * 1e3

    def ipc_handle(self) -> bytes:
        """A handle for other processes: there is none."""
        raise NotImplementedError("events of the emulated device cannot be shared with another process")
