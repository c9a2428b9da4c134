"""What a worker saw, before anybody is blamed: facts about a run, never a rule.

A worker has torch and the target but no catalogue; it says what happened and where. ``blame`` runs in the parent,
reads the catalogue and the suspects, and turns each observation into a ``Finding``.
"""

from __future__ import annotations

from dataclasses import dataclass

from capturelint.runtime.timeline import Operations, Timeline
from capturelint.vocabulary import ObservationKind, Verdict


@dataclass(frozen=True, slots=True)
class Spot:
    """A line of the target that ran. ``column`` and ``end_column`` are 0 where Python does not know them (3.10)."""

    path: str
    line: int
    name: str
    column: int = 0
    end_line: int = 0
    end_column: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """One fact. ``spots`` runs from the entry to the innermost line of the target; empty where no line is known.

    ``call`` is the ATen call, ``before`` and ``after`` what it took at capture and at step ``step``, ``home`` the
    attribute that moved. An observation that is not ``sure`` to be a fault changes no verdict.
    """

    kind: ObservationKind
    text: str
    spots: tuple[Spot, ...] = ()
    step: int | None = None
    call: str = ""
    before: str = ""
    after: str = ""
    home: str = ""
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of one step."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class BucketResult:
    """Everything that one bucket's runs gave. Times and sizes are ``None`` where nothing was measured.

    ``max_error``, ``noise`` and ``tolerance`` are relative to the largest value of the eager output. ``fault`` means
    that the target failed without any capture, so the bucket says nothing about graphs. ``step_errors`` are those of
    the replayed steps, of which the first is step ``first_step``. ``argmax_margin`` is the smallest distance of the two
    best logits of a row, relative to the largest value too. ``kernels`` are those of one eager step, and ``busy_share``
    is the part of it in which the GPU works, by the profiler. ``operations`` are those of the captured step, in order.
    ``is_lost``: the process that saw the fault could not look for its cause any more.
    ``device_bytes`` is the most that the process held of the device, the graphs of larger sizes included.
    """

    size: int
    verdict: Verdict
    steps: int = 0
    max_error: float | None = None
    noise: float | None = None
    tolerance: float | None = None
    message: str = ""
    fault: bool = False
    observations: tuple[Observation, ...] = ()
    probes: tuple[str, ...] = ()
    argmax_flips: int | None = None
    graph_nodes: int | None = None
    pool_bytes: int | None = None
    capture_s: float | None = None
    eager_ms: Times | None = None
    replay_ms: Times | None = None
    host_ms: Times | None = None
    eager_host_ms: Times | None = None
    busy_share: float | None = None
    kernels: int | None = None
    argmax_margin: float | None = None
    step_errors: tuple[float, ...] = ()
    first_step: int = 0
    operations: tuple[Operations, ...] = ()
    eager_timeline: Timeline | None = None
    replay_timeline: Timeline | None = None
    device_bytes: int | None = None
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the runs happened. ``gpu`` and ``driver`` (its version) are ``None`` when emulated.

    ``tells_memory``: the driver tells what a process holds of the device.
    """

    device: str
    torch: str
    gpu: str | None = None
    driver: str | None = None
    tells_memory: bool = False


@dataclass(frozen=True, slots=True)
class Floor:
    """The time below which no step can go: every byte that it reads, read once at the measured bandwidth."""

    nbytes: int
    bandwidth: float

    @property
    def ms(self) -> float:
        """Milliseconds."""
        return self.nbytes / self.bandwidth * 1000
