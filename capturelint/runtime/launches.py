"""The graphs that a target captures and replays by itself: what was going on when an error came out.

The device reports an error of a kernel at some later call, whose line has nothing to do with it. What is known is
whether a capture was open, whether a replay itself failed, and how many replays were launched before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from capturelint.runtime.patched import patched


@dataclass(slots=True)
class Launches:
    """Counts replays. ``before`` runs in front of each one.

    ``in_capture``: an error that comes out now has to do with a capture; ``in_replay``: it came out of a replay.
    """

    before: Callable[[], None] = lambda: None
    num_replays: int = 0
    in_capture: bool = False
    in_replay: bool = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note captures and replays of every graph while entered."""
        graph = torch.cuda.CUDAGraph
        begin, end, launch = graph.capture_begin, graph.capture_end, graph.replay
        seen = self

        @functools.wraps(begin)
        def noted_begin(self_: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signature
            seen.in_capture = True
            return begin(self_, *args, **kwargs)

        @functools.wraps(end)
        def noted_end(self_: Any) -> Any:  # noqa: ANN401 - torch's own signature
            ended = end(self_)
            # A capture whose body raised is ended on the way out.
            seen.in_capture = sys.exc_info()[0] is not None
            return ended

        @functools.wraps(launch)
        def noted_replay(self_: Any) -> Any:  # noqa: ANN401 - torch's own signature
            if seen.in_capture:
                return launch(self_)
            seen.before()
            seen.num_replays += 1
            seen.in_replay = True
            launched = launch(self_)
            seen.in_replay = False
            return launched

        with patched(graph, {"capture_begin": noted_begin, "capture_end": noted_end, "replay": noted_replay}):
            yield
