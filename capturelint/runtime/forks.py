"""Side streams that a captured step entered and did not join, and queries: refusals that no frame can be blamed for.

The error arrives when the capture ends, or with the next call: ``query`` takes an error for "not ready". Python's own
stream and event calls are watched while the step is captured; nothing is asked of the device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from capturelint.runtime.hooks import Hook, Pending, hooked
from capturelint.runtime.observations import Spot
from capturelint.runtime.project import Project


@dataclass(slots=True)
class Forks:
    """Lines that entered a stream, by the stream's handle; joined ones are taken out.

    ``queried`` are the lines that asked for progress while a capture was open, or waited.
    """

    project: Project
    entered: dict[int, tuple[Spot, ...]] = field(default_factory=dict)
    queried: list[tuple[Spot, ...]] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[Forks]:
        """Note ``with torch.cuda.stream(s)``, ``wait_stream``, and what asks for progress or waits, while entered."""

        def enter(context: torch.cuda.StreamContext, call: Pending) -> object:
            if context.stream is not None:
                self.entered[handle(context.stream)] = self.project.spots(sys._getframe())
            return call()

        def wait_stream(stream: object, call: Pending) -> object:
            (other,) = (*call.args[1:], *call.keywords.values())
            self.entered.pop(handle(other), None)
            return call()

        def ask(owner: object, call: Pending) -> object:
            if torch.cuda.is_current_stream_capturing():
                self.queried.append(self.project.spots(sys._getframe()))
            return call()

        asks: dict[str, Hook] = {"query": ask, "synchronize": ask}
        with (
            hooked(torch.cuda.StreamContext, {"__enter__": enter}),
            hooked(torch.cuda.Stream, {**asks, "wait_stream": wait_stream}),
            hooked(torch.cuda.Event, asks),
        ):
            yield self

    @property
    def unjoined(self) -> tuple[Spot, ...]:
        """The line that entered the stream which nothing waited for, the latest first."""
        return next((spots for spots in reversed(self.entered.values()) if spots), ())


def handle(stream: object) -> int:
    """What tells two streams apart."""
    return int(getattr(stream, "cuda_stream", 0) or id(stream))
