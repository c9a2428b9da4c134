"""How much longer a long run takes: from the share that is done and the time that it took.

Nothing is promised before a tenth is done, since the first part starts processes and loads what the others share.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MIN_SHARE = 0.1
MIN_ELAPSED_S = 2.0


class Waiting:
    """One run. ``now`` gives seconds, from any beginning."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.started = now()

    def left(self, share: float) -> str:
        """``, about 40 s left``, or nothing where that cannot be known yet. ``share`` of the run is done, 0 to 1."""
        elapsed = self.now() - self.started
        if share < MIN_SHARE or elapsed < MIN_ELAPSED_S:
            return ""
        return f", about {spoken(elapsed / share * (1 - min(share, 1.0)))} left"


def spoken(seconds: float) -> str:
    """``8 s``, ``2 min``: no more digits than an estimate has."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds, -1):.0f} s" if seconds < 95 else f"{round(seconds / 60)} min"
