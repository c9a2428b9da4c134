"""Compile a step as users do, run it until it is steady, and tell what became of it.

To be called once in a fresh process: compilation leaves caches, counters and a memory pool behind, and a warm cache
hides what the scheduler says. ``environment.cold`` is the environment that such a process needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

import torch
import torch._dynamo

from capturelint.compiler import breaks, coverage, partitions, skips
from capturelint.compiler.incompatible import Inspector
from capturelint.compiler.listen import Ear, Heard, listening
from capturelint.compiler.report import CompileReport, Coverage, Milliseconds

Inputs = Mapping[str, object]
Step = Callable[..., object]
MAX_DEPTH = 8
STEADY = 3
"""Calls with the very same inputs before anything is measured: a shape that depends on values may be new."""
ONLY_ON_A_GPU = (
    "no GPU: skips, partitions and coverage cannot be seen; only operators that Inductor never captures are reported"
)


def collect(step: Step, make_inputs: Callable[[int], Inputs], device: str, *, num_calls: int = 4) -> CompileReport:
    """Compile ``step`` with ``mode="reduce-overhead"`` and call it until it replays.

    ``make_inputs(n)`` gives fresh tensors for call ``n``. They come at moving addresses for ``num_calls`` calls (3 at
    least: one warms up, one records, one replays), then at fixed ones for as many. ``device``: ``"cuda"`` or ``"cpu"``.
    An exception of the step ends the run and is in the report. ``TORCH_LOGS`` should not be set.
    """
    on_gpu = device.startswith("cuda")
    inspector = Inspector()
    torch._dynamo.reset()
    num_breaks = len(torch._dynamo.utils.graph_break_reasons)
    measured: Coverage | None = None
    times: Milliseconds | None = None
    error: str | None = None
    with listening(to_inductor=on_gpu) as ear, torch.no_grad():
        compiled = compile_step(step, inspector, on_gpu=on_gpu)
        try:
            inputs = run(compiled, make_inputs, num_calls, on_gpu=on_gpu)
            if on_gpu:
                steady = partial(call, compiled, inputs, on_gpu=True)
                times = coverage.time_calls(steady)
                measured = coverage.measure(steady)
        except Exception as raised:  # noqa: BLE001  the target's own fault is what is reported
            error = tell(raised, ear)
        recorded = anything_recorded() if on_gpu else None
    report = summarise(ear, inspector, num_breaks, on_gpu=on_gpu, measured=measured, error=error, recorded=recorded)
    return replace(report, times=times)


def compile_step(step: Step, inspector: Inspector, *, on_gpu: bool) -> Step:
    """The step, compiled; without a GPU by the inspector."""
    if on_gpu:
        return torch.compile(step, mode="reduce-overhead")
    return torch.compile(step, backend=inspector.backend())


def run(compiled: Step, make_inputs: Callable[[int], Inputs], num_calls: int, *, on_gpu: bool) -> Inputs:
    """Call the step at moving addresses, at fixed ones, and with fixed values. Returns the inputs of the last calls."""
    alive = []  # an address is free for the next input once its tensor is gone
    for number in range(num_calls):
        alive.append(make_inputs(number))
        call(compiled, alive[-1], on_gpu=on_gpu)
    fixed = make_inputs(num_calls)
    for number in range(num_calls, 2 * num_calls):
        refill(fixed, make_inputs(number))
        call(compiled, fixed, on_gpu=on_gpu)
    for _ in range(STEADY if on_gpu else 0):
        call(compiled, fixed, on_gpu=on_gpu)
    return fixed


def call(compiled: Step, inputs: Inputs, *, on_gpu: bool) -> object:
    """One step."""
    if on_gpu:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call, unused-ignore]
    return compiled(**inputs)


def refill(fixed: Inputs, fresh: Inputs) -> None:
    """Give the tensors of ``fixed`` the values of ``fresh`` at their own addresses."""
    for name, value in fixed.items():
        other = fresh[name]
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor) and value.shape == other.shape:
            value.copy_(other)


def tell(raised: BaseException, ear: Ear) -> str:
    """The first exception of the chain in one line; the whole texts are heard like log records."""
    chain = list(islice(causes(raised), MAX_DEPTH))
    ear.records += [Heard("exception", f"{type(e).__module__}.{type(e).__qualname__}: {e}") for e in chain]
    lines = str(chain[-1]).strip().splitlines()
    return f"{type(chain[-1]).__name__}: {lines[0] if lines else ''}"


def causes(raised: BaseException) -> Iterator[BaseException]:
    """An exception and those that led to it, last to first."""
    error: BaseException | None = raised
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def anything_recorded() -> bool:
    """CUDA Graph Trees has a manager, so at least one function got as far as its warm-up."""
    from torch._inductor.cudagraph_trees import get_manager

    return get_manager(torch.cuda.current_device(), create_if_none_exists=False) is not None


def summarise(
    ear: Ear,
    inspector: Inspector,
    num_breaks: int,
    *,
    on_gpu: bool,
    measured: Coverage | None,
    error: str | None,
    recorded: bool | None,
) -> CompileReport:
    """What was heard, as a report."""
    findings = ear.findings()
    skipped = skips.skips(ear, findings, on_gpu=on_gpu)
    if on_gpu and not skipped and error is None and not (recorded and measured and measured.graph_launches):
        skipped = (skips.silent(),)
    return CompileReport(
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        torch=torch.__version__,
        graph_breaks=breaks.graph_breaks(ear, findings, num_breaks),
        skips=skipped,
        partitions=partitions.partitions(ear) if on_gpu else inspector.found(),
        recompiles=breaks.recompiles(findings),
        rerecords=skips.rerecords(findings),
        overwritten=skips.overwritten(findings),
        partitioned=partitions.partitioned(ear),
        coverage=measured,
        partial=() if on_gpu else (ONLY_ON_A_GPU,),
        error=error,
    )
