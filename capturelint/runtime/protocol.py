"""What the parent and a worker say to each other: one JSON object a line, over a pipe of its own.

The target may print, close its standard streams or die in the middle of a word, so its standard output carries
nothing of ours. The one surprise: a line cut short by a crash is dropped, never an error.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TypeAlias

from capturelint.runtime.observations import BucketResult, Floor, Machine, Observation, Spot, Times
from capturelint.runtime.timeline import Operations, Timeline
from capturelint.vocabulary import ObservationKind, Verdict


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker is asked to do. ``device`` is ``cuda``, ``emulated`` or ``auto``; ``steps`` counts from step 0.

    ``traced`` asks for a capture under the ATen recorder, for refusals that leave no line behind.
    """

    target: str
    device: str
    buckets: tuple[int, ...]
    steps: int
    warm_up: int
    max_length: int
    tiny: bool = False
    driver: str | None = None
    reference: str | None = None
    tolerance: float | None = None
    memory_limit_gib: float | None = None
    traced: bool = False


class Stage(Enum):
    """What a worker is doing; the word of the progress line and of a time-out's message."""

    START = "start"
    LOAD = "load"
    BUILD = "build"
    EAGER = "eager"
    WARM_UP = "warm-up"
    CAPTURE = "capture"
    REPLAY = "replay"
    PROBE = "probe"
    MEASURE = "measure"
    BLAME = "blame"
    DRIVER = "driver"
    COMPILE = "compile"

    @property
    def captures(self) -> bool:
        """Whether a failure here speaks about graphs, and not about the target alone."""
        return self in (Stage.CAPTURE, Stage.REPLAY, Stage.PROBE, Stage.MEASURE, Stage.BLAME, Stage.DRIVER)


@dataclass(frozen=True, slots=True)
class Progress:
    """A worker reached a stage. Each one also tells the parent that the worker is alive."""

    stage: Stage
    bucket: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """The target failed without any capture, or the machine lacks something; ``machine`` tells which.

    ``bucket`` is ``None`` when no bucket can be verified (loading, building).
    """

    stage: Stage
    message: str
    machine: bool = False
    bucket: int | None = None
    step: int | None = None
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The worker has nothing left to do."""

    floor: Floor | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peak:
    """The most device memory that the worker has held so far, in bytes; it got there while at ``bucket``."""

    nbytes: int
    bucket: int | None = None


@dataclass(frozen=True, slots=True)
class Farewell:
    """The worker ends by itself. A target that ends the process, with whatever status, says none."""


Message: TypeAlias = Machine | Progress | Fault | BucketResult | Peak | Done | Farewell


def encode(message: Message | Plan) -> bytes:
    """One line of JSON."""
    record = {"type": type(message).__name__, **asdict(message)}
    return json.dumps(record, default=plain).encode() + b"\n"


def plain(value: object) -> object:
    """Enums travel as their words."""
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"cannot send {type(value).__name__}")


def decode_plan(line: bytes) -> Plan:
    """The inverse of ``encode`` for a plan."""
    record = json.loads(line)
    del record["type"]
    return Plan(**{**record, "buckets": tuple(record["buckets"])})


def decode(line: bytes) -> Message | None:
    """The inverse of ``encode``; ``None`` for a line that a dying worker left unfinished."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    kind = record.pop("type")
    match kind:
        case "Machine":
            return Machine(**record)
        case "Progress":
            return Progress(**{**record, "stage": Stage(record["stage"])})
        case "Fault":
            return Fault(**{**record, "stage": Stage(record["stage"])})
        case "BucketResult":
            return decode_bucket(record)
        case "Peak":
            return Peak(**record)
        case "Farewell":
            return Farewell()
        case "Done":
            floor = record["floor"]
            return Done(Floor(**floor) if floor else None, tuple(record["notes"]))
        case _:
            raise ValueError(f"unknown message {kind!r}")


def decode_bucket(record: dict[str, object]) -> BucketResult:
    """A bucket's result from its JSON record."""
    fields = {**record, "verdict": Verdict(record["verdict"])}
    for name in ("eager_ms", "replay_ms", "host_ms", "eager_host_ms"):
        times = record[name]
        fields[name] = Times(**times) if isinstance(times, dict) else None
    for name in ("eager_timeline", "replay_timeline"):
        line = record[name]
        fields[name] = decode_timeline(line) if isinstance(line, dict) else None
    operations = record["operations"]
    assert isinstance(operations, list)
    fields["operations"] = tuple(Operations(**each) for each in operations)
    observations = record["observations"]
    assert isinstance(observations, list)
    fields["observations"] = tuple(decode_observation(each) for each in observations)
    probes = record["probes"]
    assert isinstance(probes, list)
    fields["probes"] = tuple(probes)
    errors = record["step_errors"]
    assert isinstance(errors, list)
    fields["step_errors"] = tuple(errors)
    return BucketResult(**fields)  # type: ignore[arg-type]


def decode_timeline(record: dict[str, object]) -> Timeline:
    """A timeline from its JSON record."""
    return Timeline(**{name: tuple(value) if isinstance(value, list) else value for name, value in record.items()})  # type: ignore[arg-type]


def decode_observation(record: dict[str, object]) -> Observation:
    """An observation from its JSON record."""
    spots = record["spots"]
    assert isinstance(spots, list)
    fields = {**record, "kind": ObservationKind(record["kind"]), "spots": tuple(Spot(**spot) for spot in spots)}
    return Observation(**fields)  # type: ignore[arg-type]
