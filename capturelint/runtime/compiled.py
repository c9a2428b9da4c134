"""``verify --compile``: the step compiled in a process of its own, and what it says of itself read back.

A fresh process, because compilation leaves caches, counters and a memory pool behind, and with cold caches, because
on a hit torch does not say why it split a graph. The target may print, so the answer travels in a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from capturelint.compiler.environment import cold
from capturelint.compiler.report import CompileReport, from_json
from capturelint.errors import TargetError
from capturelint.runtime.protocol import Plan, decode_plan, encode

NUM_CALLS = 4


def verify_compiled(plan: Plan, timeout_s: float) -> CompileReport:
    """Compile the plan's step at its first bucket. Raises ``TargetError`` where that gives no answer."""
    with tempfile.TemporaryDirectory(prefix="capturelint-") as directory:
        answer = Path(directory) / "answer.json"
        command = [sys.executable, "-m", "capturelint.runtime.compiled", str(answer)]
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

    from capturelint.compiler.collect import collect
    from capturelint.runtime.service import load_target
    from capturelint.runtime.target import Inputs

    device = "cuda" if torch.cuda.is_available() and plan.device != "emulated" else "cpu"
    bucket = plan.buckets[0]
    target = load_target(plan)
    state = target.build(device)
    target.prepare(state, bucket)

    def step(**inputs: object) -> object:
        return target.step(state, **inputs)

    def make_inputs(number: int) -> Inputs:
        made = target.inputs(bucket, number, device)
        return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in made.items()}

    return collect(step, make_inputs, device, num_calls=NUM_CALLS)


if __name__ == "__main__":
    main()
