"""A decode step captured once a batch size, and the right graph picked for a live batch.

Largest bucket first: later graphs fit into its memory pool (nano-vllm does the same). A live batch is padded up to
the next bucket with the rows that the inputs' maker gives, which must be valid and write nothing that lives. Outputs
are views of static buffers: the next call overwrites them, so clone what must outlive it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from capturelint.errors import UsageError

log = logging.getLogger("capturelint.buckets")

Tensors = Mapping[str, torch.Tensor]
WARM_UP = 3


@dataclass(slots=True)
class Counts:
    """What one bucket has served: calls, and rows that were padding."""

    hits: int = 0
    padding: int = 0


@dataclass(slots=True)
class Bucket:
    """One captured size. ``filled`` is how many of the leading rows hold live values since the last padding."""

    size: int
    graph: torch.cuda.CUDAGraph
    static: dict[str, torch.Tensor]
    template: dict[str, torch.Tensor]
    output: Any
    by_row: frozenset[str]
    counts: Counts = field(default_factory=Counts)
    filled: int = 0
    views: dict[int, tuple[list[tuple[str, torch.Tensor]], Any]] = field(default_factory=dict)

    def live(self, batch: int) -> tuple[list[tuple[str, torch.Tensor]], Any]:
        """The views of ``batch`` rows of every input and of the output, made once."""
        if batch not in self.views:
            inputs = [(name, buffer[:batch] if name in self.by_row else buffer) for name, buffer in self.static.items()]
            self.views[batch] = (inputs, first_rows(self.output, self.size, batch))
        return self.views[batch]

    def pad(self, batch: int) -> None:
        """Give the rows behind ``batch`` their padding again, where a larger batch has written them."""
        if self.filled > batch:
            for name in self.by_row:
                self.static[name][batch : self.filled].copy_(self.template[name][batch : self.filled])
        self.filled = batch


class BucketedStep:
    """``step(**inputs)`` by replaying the smallest captured bucket that the batch fits into.

    ``make_inputs(size)`` gives valid inputs of a batch size: the buffers' shapes and the padding. Above the largest
    bucket ``step`` runs eagerly, which is logged once. ``rows`` names an input whose first dimension is the batch;
    by default the first input is.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        make_inputs: Callable[[int], Tensors],
        sizes: Sequence[int],
        rows: str | None = None,
    ) -> None:
        if not sizes or min(sizes) < 1:
            raise UsageError(f"buckets {list(sizes)}: give at least one batch size from 1")
        self.step = step
        self.sizes = sorted(set(sizes))
        self.fallbacks = 0
        self.buckets: dict[int, Bucket] = {}
        pool: Any = None
        for size in reversed(self.sizes):
            bucket = capture_bucket(step, make_inputs(size), size, pool)
            pool = pool or bucket.graph.pool()
            self.buckets[size] = bucket
        self.rows = rows or next(iter(self.buckets[self.sizes[0]].static))

    def __call__(self, **inputs: torch.Tensor) -> Any:  # noqa: ANN401 - whatever the step returns
        """The step's output for a live batch, without its padding; valid until the next call."""
        batch = inputs[self.rows].shape[0]
        at = bisect_left(self.sizes, batch)
        if at == len(self.sizes):
            return self.run_eagerly(batch, inputs)
        bucket = self.buckets[self.sizes[at]]
        buffers, output = bucket.live(batch)
        for name, buffer in buffers:
            buffer.copy_(inputs[name])
        if bucket.filled != batch:
            bucket.pad(batch)
        bucket.graph.replay()
        bucket.counts.hits += 1
        bucket.counts.padding += bucket.size - batch
        return output

    def run_eagerly(self, batch: int, inputs: Tensors) -> Any:  # noqa: ANN401 - whatever the step returns
        """The step without a graph."""
        if not self.fallbacks:
            log.warning("batch %d is above the largest bucket, %d: it runs eagerly", batch, self.sizes[-1])
        self.fallbacks += 1
        return self.step(**inputs)

    @property
    def counts(self) -> dict[int, Counts]:
        """What every bucket has served."""
        return {size: self.buckets[size].counts for size in self.sizes}


def capture_bucket(step: Callable[..., Any], given: Tensors, size: int, pool: Any) -> Bucket:  # noqa: ANN401
    """Capture one size. Lets the refusal of a capture through."""
    template = {name: value.clone() for name, value in given.items()}
    static = {name: value.clone() for name, value in given.items()}
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step(**static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        output = step(**static)
    by_row = frozenset(name for name, value in static.items() if value.dim() > 0 and value.shape[0] == size)
    return Bucket(size, graph, static, template, output, by_row)


def first_rows(output: Any, size: int, batch: int) -> Any:  # noqa: ANN401 - whatever the step returns
    """Views of the live rows, in the containers that the step returns."""
    match output:
        case torch.Tensor() if output.dim() > 0 and output.shape[0] == size:
            return output[:batch]
        case list() | tuple():
            return type(output)(first_rows(each, size, batch) for each in output)
        case dict():
            return {name: first_rows(each, size, batch) for name, each in output.items()}
        case _:
            return output
