"""A refused capture becomes an observation: what was refused, and at which of the target's lines.

CUDA says "operation not permitted" for a read, a count and an upload alike. What the line did is known from the same
step run eagerly under the recorder, so the calls made at the refused line tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch

from capturelint.catalog import load_aten, load_operations
from capturelint.runtime.observations import Observation, Spot
from capturelint.runtime.project import Project, first_error, text_of, traceback_spots
from capturelint.runtime.trace import Call
from capturelint.vocabulary import Effect, ObservationKind

REFUSALS = (
    "operation not permitted when stream is capturing",
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture",
    "Offset increment outside graph capture",
    "during CUDA graph capture",
    "during graph capture",
    "unjoined work",
    "StreamCapture",
    "legacy stream",
    "is not allowed during",
    "not in capture mode",
)
"""Words of the errors with which CUDA or torch refuse a capture, the follow-up "previous error" excluded."""

AFTERMATH = "due to a previous error during capture"
"""What every call, and the end of the capture, fails with after the one that was refused."""

READS = {"_local_scalar_dense", "is_nonzero", "equal", "item", "allclose"}
COUNTS = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "argwhere", "histc"}
GENERATORS = ("Offset increment outside graph capture", "for a CUDA generator not in capture mode", "CUDAGeneratorImpl")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the device or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in text_of(error) for words in ("out of memory", "can't allocate memory", "Cannot allocate memory")
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, on one line whatever spaces it has."""
    return " ".join(text_of(error).split("\n")[0].split())


def is_broken(error: BaseException) -> bool:
    """Whether the device can do nothing more after this error."""
    return "CUDA error" in text_of(error)


def refusal(
    error: BaseException, project: Project, eager: Sequence[Call], unjoined: tuple[Spot, ...], step: int
) -> Observation:
    """What a failed capture tells. ``eager`` holds the same step's calls, made without a capture."""
    cause = first_error(error, REFUSALS)
    text = first_line(cause) or type(cause).__name__
    spots = project.raised_at(cause)
    kind = kind_of(cause, spots, eager)
    if kind is ObservationKind.UNJOINED_STREAM:
        spots = unjoined
    return Observation(kind, f"{type(cause).__name__}: {text}", spots, step=step, call=call_at(spots, eager))


def aftermath(seen: Observation, traced: Sequence[Call], queried: Sequence[tuple[Spot, ...]] = ()) -> Observation:
    """A refusal whose own error was caught: by a query, or by the target. Then told by the first call that failed.

    The line of the error that came out is a later one, so it is not kept.
    """
    if AFTERMATH not in seen.text:
        return seen
    if queried:
        return replace(
            seen, kind=ObservationKind.SYNCHRONISED, text=f"a query or a wait: {seen.text}", spots=queried[0]
        )
    first = next((call for call in traced if call.failed and AFTERMATH not in call.failed), None)
    if first is None:
        return replace(seen, spots=())
    kind = kind_of_call(first) or ObservationKind.REFUSED
    failed = " ".join(first.failed.split("\n")[0].split())
    return replace(seen, kind=kind, text=f"`{first.short}`: {failed}", spots=first.spots, call=first.short)


def kind_of(cause: BaseException, spots: tuple[Spot, ...], eager: Sequence[Call]) -> ObservationKind:
    """The kind of a refusal: what the emulator or the text says, else what the line's calls do."""
    told = getattr(cause, "kind", None)
    if isinstance(told, ObservationKind):
        return told
    text = text_of(cause)
    if "unjoined work" in text:
        return ObservationKind.UNJOINED_STREAM
    if any(words in text for words in GENERATORS):
        return ObservationKind.FOREIGN_GENERATOR
    frames = list(traceback_spots(cause.__traceback__))
    if frames and frames[-1].path.replace("\\", "/").endswith(("torch/cuda/__init__.py", "torch/cuda/streams.py")):
        return ObservationKind.SYNCHRONISED
    for call in calls_at(spots, eager):
        if (kind := kind_of_call(call)) is not None:
            return kind
    if "Cannot copy between CPU and CUDA" in text:
        return ObservationKind.PAGEABLE_COPY
    if "operation not permitted when stream is capturing" in text:
        return ObservationKind.HOST_READ
    return ObservationKind.REFUSED


def calls_at(spots: tuple[Spot, ...], eager: Sequence[Call]) -> list[Call]:
    """The eager step's calls made from the innermost line of ``spots``."""
    if not spots:
        return []
    at = (spots[-1].path, spots[-1].line)
    return [call for call in eager if call.spots and (call.spots[-1].path, call.spots[-1].line) == at]


def call_at(spots: tuple[Spot, ...], eager: Sequence[Call]) -> str:
    """The name of the call that the line was refused for, where it is known."""
    return next((call.short for call in calls_at(spots, eager) if kind_of_call(call) is not None), "")


def kind_of_call(call: Call) -> ObservationKind | None:
    """Why a capture refuses an ATen call; ``None`` for a call that it takes."""
    name = call.short
    if name in READS:
        return ObservationKind.HOST_READ
    if name in COUNTS or call.name.startswith("aten.repeat_interleave.Tensor"):
        return ObservationKind.DYNAMIC_OUTPUT
    if name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
        tensor.dtype in ("bool", "uint8") for tensor in call.tensors[1:]
    ):
        return ObservationKind.DYNAMIC_OUTPUT
    if name in checked_operations():
        return ObservationKind.CHECKED_ERROR
    return kind_of_transfer(call) if name in ("_to_copy", "copy_", "to", "lift_fresh", "_copy_from") else None


@cache
def checked_operations() -> frozenset[str]:
    """ATen names of what reads back an error code of its own, whole composites included."""
    aten = (name for row in load_aten().refusals if row.effect is Effect.CHECKED for name in row.operators)
    known = (
        name.replace("linalg.", "linalg_")
        for name, operation in load_operations().operations.items()
        if any(case.effect is Effect.CHECKED for case in operation.cases)
    )
    return frozenset(name.removeprefix("aten::").split(".")[0] for name in (*aten, *known))


def kind_of_transfer(call: Call) -> ObservationKind | None:
    """A copy between host and device; the destination of ``copy_`` comes first."""
    devices = [tensor.device.split(":")[0] for tensor in (*call.outputs[:1], *call.tensors)]
    if len(set(devices)) < 2:
        return None
    return ObservationKind.HOST_READ if devices[0] == "cpu" else ObservationKind.PAGEABLE_COPY
