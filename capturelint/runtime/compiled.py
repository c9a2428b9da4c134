"""``verify --compile``: the step compiled in a process of its own, a batch size at a time, and what it says read back.

A fresh process, because compilation leaves caches, counters and a memory pool behind, and with cold caches, because
on a hit torch does not say why it split a graph. The target may print, so the answer travels in a file. A batch size
has a process to itself, as a server compiles its buckets one by one: a recompile is never the next batch size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from capturelint.compiler.environment import cold
from capturelint.compiler.report import CompiledBucket, CompileReport, from_json, merged
from capturelint.errors import TargetError
from capturelint.runtime.observations import Machine
from capturelint.runtime.protocol import Plan, Progress, Stage, decode_plan, encode


def verify_compiled(
    plan: Plan, timeout_s: float, machine: Machine, tell: Callable[[Progress], None] = lambda progress: None
) -> CompileReport:
    """Compile the plan's step at every bucket.

    On a GPU times are measured, so one at a time; a process that hangs or dies there is that bucket's error. Without
    a GPU it may only mean that the target needs one: raises ``TargetError``.
    """
    on_gpu = machine.device == "cuda"

    def compiled(bucket: int) -> CompileReport:
        tell(Progress(Stage.COMPILE, bucket))
        try:
            return compile_apart(replace(plan, buckets=(bucket,)), timeout_s)
        except TargetError as error:
            if not on_gpu:
                raise
            lost = CompiledBucket(bucket, error=str(error))
            return CompileReport(machine.gpu or "unknown", machine.torch, buckets=(lost,))

    with ThreadPoolExecutor(1 if on_gpu else os.cpu_count()) as pool:
        return merged(list(pool.map(compiled, plan.buckets)))


def compile_apart(plan: Plan, timeout_s: float) -> CompileReport:
    """One bucket in a process of its own. Raises ``TargetError`` where that gives no answer."""
    with tempfile.TemporaryDirectory(prefix="capturelint-") as directory:
        answer = Path(directory) / "answer.json"
        command = [sys.executable, "-m", "capturelint.runtime.compiled", str(answer), str(os.getpid())]
        try:
            ended = subprocess.run(
                command, input=encode(plan), capture_output=True, env=cold(os.environ), timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise TargetError(f"{plan.target}: compiling took more than {timeout_s:g} s (--timeout)") from error
        if not answer.is_file():
            printed = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise TargetError(f"{plan.target}: the process that compiles the step ended early: {''.join(printed)}")
        return from_json(json.loads(answer.read_text(encoding="utf-8")))


def main() -> None:
    """Serve one plan, read from standard input, into the file named on the command line."""
    from capturelint.runtime.worker import die_with_parent

    die_with_parent(int(sys.argv[2]))
    answer = Path(sys.argv[1])
    plan = decode_plan(sys.stdin.buffer.readline())
    report = compile_target(plan)
    written = answer.with_suffix(".part")
    written.write_text(json.dumps(report.as_json()), encoding="utf-8")
    written.rename(answer)
    sys.stdout.flush()
    os._exit(0)  # what the target has started is not waited for


def compile_target(plan: Plan) -> CompileReport:
    """In this process. Without a GPU the step is compiled for the CPU, and the report says what that cannot show."""
    import torch

    from capturelint.runtime import compiled_step, machine, meter
    from capturelint.runtime.channel import silent_channel
    from capturelint.runtime.worker import limited

    if plan.device == "emulated" or not torch.cuda.is_available():
        return compiled_step.on_cpu(plan)
    gauge = meter.opened()
    found = machine.find("cuda")
    assert isinstance(found, Machine)
    with silent_channel() as channel, limited(plan, found, gauge, channel):
        return compiled_step.on_gpu(plan, channel)


if __name__ == "__main__":
    main()
