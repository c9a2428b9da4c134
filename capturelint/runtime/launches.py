"""The graphs that a target captures and replays by itself: what was going on when an error came out.

The device reports an error of a kernel at some later call, whose line has nothing to do with it. What is known is
whether a capture was open, whether a replay itself failed, and how many replays were launched before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from capturelint.runtime.hooks import Pending, hooked


@dataclass(slots=True)
class Launches:
    """Counts captures and replays. ``before`` runs in front of each one.

    ``in_capture``: an error that comes out now has to do with a capture; ``in_replay``: it came out of a replay.
    """

    before: Callable[[], None] = lambda: None
    num_captures: int = 0
    num_replays: int = 0
    in_capture: bool = False
    in_replay: bool = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note captures and replays of every graph while entered."""

        def begin(graph: object, call: Pending) -> object:
            self.in_capture = True
            self.num_captures += 1
            return call()

        def end(graph: object, call: Pending) -> object:
            ended = call()
            # A capture whose body raised is ended on the way out.
            self.in_capture = sys.exc_info()[0] is not None
            return ended

        def replay(graph: object, call: Pending) -> object:
            if self.in_capture:
                return call()
            self.before()
            self.num_replays += 1
            self.in_replay = True
            launched = call()
            self.in_replay = False
            return launched

        with hooked(torch.cuda.CUDAGraph, {"capture_begin": begin, "capture_end": end, "replay": replay}):
            yield
