"""Side streams that a captured step entered and did not join, and queries: refusals that no frame can be blamed for.

The error arrives when the capture ends, or with the next call: ``query`` takes an error for "not ready". Python's own
stream and event calls are watched while the step is captured; nothing is asked of the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

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
        context, stream, event = torch.cuda.StreamContext, torch.cuda.Stream, torch.cuda.Event
        enter, wait_stream = context.__enter__, stream.wait_stream
        ask_stream, ask_event = stream.query, event.query

        def noted_enter(self_: Any) -> Any:  # noqa: ANN401 - torch's own signature
            if self_.stream is not None:
                self.entered[handle(self_.stream)] = self.project.spots(sys._getframe(1))
            return enter(self_)  # type: ignore[no-untyped-call]

        def noted_wait(self_: Any, other: Any) -> Any:  # noqa: ANN401 - torch's own signature
            self.entered.pop(handle(other), None)
            return wait_stream(self_, other)

        def noting(ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def noted_query(self_: Any) -> Any:  # noqa: ANN401 - torch's own signature
                if torch.cuda.is_current_stream_capturing():
                    self.queried.append(self.project.spots(sys._getframe(1)))
                return ask(self_)

            return noted_query

        patched: list[tuple[object, str, Callable[..., object], Callable[..., object]]] = [
            (context, "__enter__", noted_enter, enter),
            (stream, "wait_stream", noted_wait, wait_stream),
            (stream, "query", noting(ask_stream), ask_stream),
            (event, "query", noting(ask_event), ask_event),
            (stream, "synchronize", noting(stream.synchronize), stream.synchronize),
            (event, "synchronize", noting(event.synchronize), event.synchronize),
        ]
        for owner, name, noted, _ in patched:
            setattr(owner, name, noted)
        try:
            yield self
        finally:
            for owner, name, _, original in patched:
                setattr(owner, name, original)

    @property
    def unjoined(self) -> tuple[Spot, ...]:
        """The line that entered the stream which nothing waited for, the latest first."""
        return next((spots for spots in reversed(self.entered.values()) if spots), ())


def handle(stream: object) -> int:
    """What tells two streams apart."""
    return int(getattr(stream, "cuda_stream", 0) or id(stream))
