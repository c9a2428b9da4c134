"""Compile a step as users do, run it until it is steady, and tell what became of it.

To be called once in a fresh process: compilation leaves caches, counters and a memory pool behind, and a warm cache
hides what the scheduler says. ``environment.cold`` is the environment that such a process needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice

import torch
import torch._dynamo

from capturelint.compiler import breaks, coverage, partitions, skips
from capturelint.compiler.generated import Generated, watched
from capturelint.compiler.incompatible import Inspector
from capturelint.compiler.listen import Ear, Heard, listening
from capturelint.compiler.report import LISTS, CompiledBucket, CompileReport, Coverage, Milliseconds

Inputs = Mapping[str, object]
Step = Callable[..., object]
MIN_STEPS = 4
"""Of one call each: one warms up, one records, the others replay."""
MAX_DEPTH = 8
STEADY = 3
"""Calls with the very same inputs before kernels are counted: a shape that depends on values may be new."""
ONLY_ON_A_GPU = (
    "no GPU: coverage cannot be seen; of skips and partitions only writes to inputs are reported, and operators that "
    "Inductor never captures"
)


@dataclass(frozen=True, slots=True)
class Program:
    """A step and what it is called with: ``inputs(n)`` gives fresh tensors for step ``n`` of ``num_steps``.

    The first ``num_eager`` steps are not compiled. ``remember`` is called before step ``first``, and ``rewind`` puts
    the state back to where that step starts. ``observe(n, output)`` sees every output before a later step may
    overwrite it.
    """

    step: Step
    inputs: Callable[[int], Inputs]
    num_steps: int = MIN_STEPS
    num_eager: int = 0
    first: int = 0
    remember: Callable[[], None] = lambda: None
    rewind: Callable[[], None] = lambda: None
    observe: Callable[[int, object], None] = lambda number, output: None


def collect(program: Program, device: str, size: int = 0) -> CompileReport:
    """Compile a step with ``mode="reduce-overhead"`` and call it until it replays.

    Its inputs come at moving addresses for ``num_steps`` calls, then at fixed ones. ``device``: ``"cuda"`` or
    ``"cpu"``. ``size`` is the batch size that the report is for. An exception of the step ends the run and is in the
    report. ``TORCH_LOGS`` should not be set.
    """
    on_gpu = device.startswith("cuda")
    inspector = Inspector()
    torch._dynamo.reset()
    num_breaks = len(torch._dynamo.utils.graph_break_reasons)
    bucket = CompiledBucket(size)
    watching = watched() if on_gpu else nullcontext(Generated())
    with listening(to_inductor=on_gpu) as ear, watching as generated, torch.no_grad():
        caller = Caller(compile_step(program.step, inspector, on_gpu=on_gpu), program, on_gpu)
        try:
            inputs = caller.run()
            if on_gpu:
                bucket = replace(bucket, coverage=caller.coverage(inputs, generated), compiled_ms=caller.times(inputs))
        except Exception as raised:  # noqa: BLE001  the target's own fault is what is reported
            bucket = replace(bucket, error=tell(raised, ear))
        recorded = anything_recorded() if on_gpu else None
    bucket = replace(bucket, calls=caller.num_calls)
    return summarise(ear, inspector, num_breaks, bucket, on_gpu=on_gpu, recorded=recorded)


@dataclass(slots=True)
class Caller:
    """Calls a compiled step in rows: through all its steps, and again from the one that ``rewind`` goes back to."""

    compiled: Step
    program: Program
    on_gpu: bool
    num_calls: int = 0

    def run(self) -> Inputs:
        """A row at moving addresses and a row at fixed ones. Returns the inputs at fixed addresses."""
        program, alive = self.program, []  # an address is free for the next input once its tensor is gone
        for number in range(program.num_steps):
            if number == program.first:
                program.remember()
            alive.append(program.inputs(number))
            call = self.call if number >= program.num_eager else self.call_eagerly
            program.observe(number, call(alive[-1]))
        program.rewind()
        fixed = program.inputs(program.first)
        for number in range(program.first, program.num_steps):
            refill(fixed, program.inputs(number))
            program.observe(number, self.call(fixed))
        return fixed

    def call_eagerly(self, inputs: Inputs) -> object:
        """One step that is not compiled."""
        return self.program.step(**inputs)

    def call(self, inputs: Inputs) -> object:
        """One step."""
        if self.on_gpu:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call, unused-ignore]
        output = self.compiled(**inputs)
        self.num_calls += 1
        return output

    def coverage(self, inputs: Inputs, generated: Generated) -> Coverage:
        """The kernels of one call, in the steady state of calls with the very same inputs."""
        self.program.rewind()
        for _ in range(STEADY):
            self.call(inputs)
        return coverage.measure(lambda: self.call(inputs), generated)

    def times(self, inputs: Inputs) -> Milliseconds | None:
        """Device milliseconds of a call, over the same steps as the rows."""
        program = self.program
        given = [program.inputs(number) for number in range(program.first, program.num_steps)]

        def row() -> Iterator[Callable[[], object]]:
            program.rewind()
            for fresh in given:
                refill(inputs, fresh)
                yield lambda: self.call(inputs)

        return coverage.time_rows(row)


def compile_step(step: Step, inspector: Inspector, *, on_gpu: bool) -> Step:
    """The step, compiled; without a GPU by the inspector."""
    if on_gpu:
        return torch.compile(step, mode="reduce-overhead")
    return torch.compile(step, backend=inspector.backend())


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
    first = lines[0].split(" Stack trace:")[0] if lines else ""
    return f"{type(chain[-1]).__name__}: {first}"


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
    ear: Ear, inspector: Inspector, num_breaks: int, bucket: CompiledBucket, *, on_gpu: bool, recorded: bool | None
) -> CompileReport:
    """What was heard, as a report."""
    findings = ear.findings()
    recompiled = breaks.recompiles(ear, findings)
    skipped = skips.skips(ear, findings) if on_gpu else inspector.skipped()
    launches = bucket.coverage.graph_launches if bucket.coverage else 0
    if on_gpu and not skipped and bucket.error is None and not (recorded and launches):
        skipped = (skips.silent(recompiled),)
    report = CompileReport(
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        torch=torch.__version__,
        graph_breaks=breaks.graph_breaks(ear, findings, num_breaks),
        skips=skipped,
        partitions=partitions.partitions(ear) if on_gpu else inspector.found(),
        recompiles=recompiled,
        rerecords=skips.rerecords(ear, findings),
        overwritten=skips.overwritten(findings),
        partitioned=partitions.partitioned(ear),
        buckets=(bucket,),
        partial=() if on_gpu else (ONLY_ON_A_GPU,),
    )
    return at_bucket(report, bucket.size) if bucket.size else report


def at_bucket(report: CompileReport, size: int) -> CompileReport:
    """The report with its events charged to a batch size."""
    events = {name: tuple(replace(event, bucket=size) for event in getattr(report, name)) for name in LISTS}
    return replace(report, **events)  # type: ignore[arg-type]
