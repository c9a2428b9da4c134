"""A worker's side of the pipe: messages out, and what the worker is doing at this moment.

The stage is kept here because whatever is raised next belongs to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from capturelint.runtime.protocol import Message, Progress, Stage, encode


@dataclass(slots=True)
class Channel:
    """Sends messages over a file descriptor. ``now`` is the last progress that was sent.

    ``look`` is called between two stages or steps; what it raises belongs to the one that is over.
    """

    descriptor: int
    now: Progress = field(default=Progress(Stage.START))
    look: Callable[[], object] = lambda: None

    def send(self, message: Message) -> None:
        """Write one line, whole."""
        line = encode(message)
        while line:
            line = line[os.write(self.descriptor, line) :]

    def enter(self, stage: Stage, bucket: int | None = None, step: int | None = None) -> None:
        """Say what comes next."""
        self.look()
        self.now = Progress(stage, bucket, step)
        self.send(self.now)


@contextmanager
def silent_channel() -> Iterator[Channel]:
    """Where a worker would tell its progress; here nobody listens."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    try:
        yield Channel(descriptor)
    finally:
        os.close(descriptor)
