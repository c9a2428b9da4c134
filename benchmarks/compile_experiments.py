"""Every program of fixtures/compile compiled on this machine, each in a process of its own; facts as JSON.

usage: python benchmarks/compile_experiments.py [--output FILE] [--jobs N] [NAME ...]

On a GPU the facts are compared with those recorded in fixtures/compile/expected.yaml; exit code 1 if one differs.
Needs torch, and capturelint importable (PYTHONPATH=. in a checkout).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

DIRECTORY = Path(__file__).parents[1] / "fixtures" / "compile"
EXPECTED = yaml.safe_load((DIRECTORY / "expected.yaml").read_text(encoding="utf-8"))
BATCH = 4


def program(name: str) -> Path:
    """``nonzero+scalars`` is nonzero.py with captured scalars and dynamic shapes."""
    return DIRECTORY / f"{name.split('+')[0]}.py"


def marked_lines(name: str, mark: str) -> list[int]:
    lines = program(name).read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if mark in line.partition("  # ")[2].split()]


def collect_one(name: str, device: str | None = None) -> dict[str, object]:
    """In this process; on a GPU where there is one, if no device is named."""
    import torch

    from capturelint.compiler.collect import Program, collect

    if name.endswith("+scalars"):
        torch._dynamo.config.capture_scalar_outputs = True
        torch._dynamo.config.capture_dynamic_output_shape_ops = True
    spec = importlib.util.spec_from_file_location(name.split("+")[0], program(name))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dynamo imports what a traced function belongs to
    spec.loader.exec_module(module)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    state = module.build(device)

    def step(x):
        return module.step(state, x)

    report = collect(Program(step, lambda number: module.inputs(BATCH, number, device)), device, BATCH)
    split = [[p.num_partitions, p.num_cudagraphable] for p in report.partitioned]
    return {"name": name, "device": report.device, "torch": report.torch, **report.as_json(), "partitioned": split}


def collect_apart(name: str) -> dict[str, object]:
    """In a fresh process with cold caches."""
    from capturelint.compiler.environment import cold

    environment = cold(os.environ)
    path = os.pathsep.join(filter(None, [str(DIRECTORY.parents[1]), environment.get("PYTHONPATH", "")]))
    command = [sys.executable, __file__, "--one", name]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**environment, "PYTHONPATH": path}, timeout=300
    )
    if result.returncode != 0:
        return {"name": name, "crashed": result.returncode, "stderr": result.stderr[-4000:]}
    return json.loads(result.stdout.splitlines()[-1])


def differences(name: str, found: dict, on_gpu: bool = True) -> list[str]:
    """What differs from the facts recorded on an H200, or, on a CPU, from what a CPU can show of them."""
    if "crashed" in found:
        return [f"crashed with {found['crashed']}"]
    want = EXPECTED[name]
    told = []

    def compare(what: str, expected: object, actual: object) -> None:
        if expected != actual:
            told.append(f"{what}: expected {expected}, found {actual}")

    scalars = name.endswith("+scalars")
    breaks = marked_lines(name, "graph-break") if want.get("breaks") else []
    compare("lines of graph breaks", breaks, sorted(event["line"] for event in found["graph_breaks"]))
    compare("error", want.get("error", False) and on_gpu, found["error"] is not None)
    if want.get("recompiles"):
        lines = {event["line"] for event in found["recompiles"]}
        compare("lines of recompiles", set(marked_lines(name, "recompile")), lines)
    if not on_gpu:
        incompatible = [want["cpu_incompatible"]] if "cpu_incompatible" in want else []
        compare("incompatible operators", incompatible, [event["detail"] for event in found["partitions"]])
    reasons = [reason for reason in want.get("skips", []) if on_gpu or reason.startswith("mutated inputs")]
    compare("reasons of skips", reasons, [event["reason"] for event in found["skips"]])
    if reasons:
        compare("lines of skips", marked_lines(name, "cudagraph-skip"), [event["line"] for event in found["skips"]])
    if not on_gpu:
        return told
    for what, mark in (("rerecords", "rerecord"), ("overwritten", "overwritten-output")):
        lines = {event["line"] for event in found[what]}
        compare(f"lines of {what}", set(marked_lines(name, mark)) if want.get(what) else set(), lines)
    if want.get("error"):
        return told
    compare("graph launches", want["graph_launches"], found["coverage"]["graph_launches"])
    split_for = {event["reason"] for event in found["partitions"]}
    compare("reasons of partitions", set(), set(want.get("reasons", ())) - split_for)
    compare(
        "graphs that are split",
        [],
        [split for split in want.get("partitions", ()) if split not in found["partitioned"]],
    )
    if want.get("partition_lines") and not scalars:
        lines = {event["line"] for event in found["partitions"]} - {None}
        compare("lines of partitions", set(marked_lines(name, "cudagraph-partition")), lines)
    return told


def experiment(name: str) -> dict[str, object]:
    begin = time.perf_counter()
    found = collect_apart(name)
    found["differences"] = differences(name, found, on_gpu=found.get("device", "cpu") != "cpu")
    found["seconds"] = round(time.perf_counter() - begin, 1)
    print(f"{name}: {'; '.join(found['differences']) or 'as recorded'} ({found['seconds']} s)", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(EXPECTED))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(collect_one(given.one)))
        return
    with ThreadPoolExecutor(given.jobs) as pool:
        records = list(pool.map(experiment, given.names))
    text = json.dumps(records, indent=1)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    right = sum(not record["differences"] for record in records)
    print(f"as recorded: {right}/{len(records)}", file=sys.stderr)
    sys.exit(right != len(records))


if __name__ == "__main__":
    main()
