"""One step becomes a CUDA graph: warm-up on a side stream, static inputs, one capture.

Warm-up steps are real decode steps: what they leave in the state is what replay starts from, as it is in the
reference. The captured step is recorded and not executed, so the first replay is that step.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from capturelint.errors import TargetError
from capturelint.runtime.channel import Channel
from capturelint.runtime.eager import make_inputs
from capturelint.runtime.protocol import Stage
from capturelint.runtime.states import RandomState, mutable
from capturelint.runtime.target import Inputs, Target
from capturelint.runtime.trace import Writes, key_of

Pool: TypeAlias = Any
"""The handle that ``CUDAGraph.pool`` returns; torch gives its type no public name."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph with the buffers that it reads and writes. ``first`` is the index of the captured step.

    ``start`` holds what a replay of that step starts from: the state's tensors and copies of them (``None`` where
    memory has no room for copies), and ``randomness`` the generators.
    """

    graph: torch.cuda.CUDAGraph
    state: object
    static: Mapping[str, object]
    output: object
    first: int
    seconds: float
    start: tuple[tuple[torch.Tensor, torch.Tensor], ...] | None
    randomness: RandomState

    def rewind(self) -> None:
        """Put the state's tensors and the generators back to where the captured step starts."""
        self.randomness.restore()
        # Tensors made in inference mode may be written in inference mode only; others may be, too.
        with torch.inference_mode():
            for tensor, copy in self.start or ():
                tensor.copy_(copy)


def capture(
    target: Target,
    state: object,
    bucket: int,
    warm_up: int,
    channel: Channel,
    pool: Pool = None,
    watching: Callable[[], AbstractContextManager[object]] = nullcontext,
    probing: bool = False,
    leaks: bool = False,
) -> Captured:
    """Warm ``state`` up by ``warm_up`` steps and capture the next one.

    ``watching`` is entered around the captured step only. Lets every error through; a refused capture leaves the
    process unfit for any other. ``probing`` is for a second look at a step that was captured before: nothing holds
    what the state held, and torch is asked to check that the graph's memory lives, where it can. ``leaks``: the
    step writes memory that no copy of the state has for itself, which is looked for in the last step of warm-up.
    """
    static = static_inputs(make_inputs(target, bucket, 0))
    writes = Writes() if leaks and not probing else None
    warm(target, state, bucket, warm_up, static, channel, writes)
    # The device's inputs stay those of the last warm-up step: no value of the capture is one of its first replay.
    copy_inputs(static, on_host(make_inputs(target, bucket, warm_up), static), warm_up)
    start = None if probing else copies((*mutable(state).values(), *outside(state, writes)))
    randomness = RandomState.now()
    torch.cuda.synchronize()
    channel.enter(Stage.PROBE if probing else Stage.CAPTURE, bucket, warm_up)
    graph = new_graph()
    started = time.perf_counter()
    options: dict[str, Any] = {"check_input_liveness": True} if probing and can_check_liveness() else {}
    with torch.no_grad(), torch.cuda.graph(graph, pool=pool, **options), watching():
        output = target.step(state, **static)
    instantiate(graph)
    torch.cuda.synchronize()
    return Captured(graph, state, static, output, warm_up, time.perf_counter() - started, start, randomness)


def can_check_liveness() -> bool:
    """Whether this torch looks for inputs that died before a replay (2.13 and later)."""
    return "check_input_liveness" in inspect.signature(torch.cuda.graph.__init__).parameters


def copies(tensors: Iterable[torch.Tensor]) -> tuple[tuple[torch.Tensor, torch.Tensor], ...] | None:
    """The tensors that a step may write, each with a copy; ``None`` if there is no room for them."""
    try:
        return tuple((tensor, tensor.clone()) for tensor in tensors)
    except torch.OutOfMemoryError:
        return None


def own_memory(state: object) -> set[int]:
    """The storages that a state has for itself; parameters are shared with its copies."""
    return {key_of(tensor) for tensor in mutable(state).values()}


def outside(state: object, writes: Writes | None) -> Iterator[torch.Tensor]:
    """What was written that is none of the state's own: the whole memory of globals and of parameters."""
    if writes is None:
        return
    known = own_memory(state) | writes.made
    for key, tensor in writes.written.items():
        if key not in known:
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            yield tensor.detach().as_strided((size,), (1,), 0)


def warm(
    target: Target,
    state: object,
    bucket: int,
    warm_up: int,
    static: Mapping[str, object],
    channel: Channel,
    writes: Writes | None = None,
) -> None:
    """Run the first steps on a side stream, as torch's documentation asks for; ``writes`` sees the last one."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for step in range(warm_up):
            channel.enter(Stage.WARM_UP, bucket, step)
            copy_inputs(static, make_inputs(target, bucket, step), step)
            with writes if writes is not None and step == warm_up - 1 else nullcontext():
                target.step(state, **static)
    torch.cuda.current_stream().wait_stream(side)


def new_graph() -> torch.cuda.CUDAGraph:
    """An empty graph whose nodes can be counted, where torch can keep them (2.8 and later)."""
    try:
        return torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        return torch.cuda.CUDAGraph()


def instantiate(graph: torch.cuda.CUDAGraph) -> None:
    """Prepare a kept graph for its launch, which others are at the end of their capture: it is part of the cost."""
    if hasattr(graph, "instantiate"):
        graph.instantiate()


def static_inputs(given: Inputs) -> dict[str, object]:
    """Buffers of the inputs' shapes; host values stay what they are."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in given.items()}


def on_host(given: Inputs, static: Mapping[str, object]) -> dict[str, object]:
    """``given`` with the buffers in place of what is on the device: host values are what a step may read."""
    return {
        name: static.get(name, value) if isinstance(value, torch.Tensor) and value.is_cuda else value
        for name, value in given.items()
    }


def copy_inputs(static: Mapping[str, object], given: Inputs, step: int) -> None:
    """Write one step's inputs into the buffers. Raises ``TargetError`` where a shape or a name changed."""
    if static.keys() != given.keys():
        raise TargetError(f"inputs returns other names in step {step}: {sorted(given)} instead of {sorted(static)}")
    for name, value in given.items():
        buffer = static[name]
        if not isinstance(buffer, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        if buffer.shape != value.shape or buffer.dtype != value.dtype:
            raise TargetError(
                f"inputs changes `{name}` in step {step}: {tuple(value.shape)} {value.dtype} instead of "
                f"{tuple(buffer.shape)} {buffer.dtype}; a bucket has one shape"
            )
        buffer.copy_(value)
