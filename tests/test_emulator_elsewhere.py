"""The emulator beside what a development environment has not: torch 2.11, with the Triton that it brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.network

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch==2.11.0", "numpy", "pytest", "hypothesis", "expecttest")
PROGRAM = """
import torch
import triton
import triton.language as tl
from capturelint.emulator import EmulationError, cuda

@triton.jit
def scaled(x, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)

tuned = triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (8, 16)], key=["n"])(scaled)

def step(x, factor):
    out = torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), factor)
    return out

with cuda(), torch.no_grad():
    x, kept = torch.ones(40, device="cuda"), torch.zeros(40, device="cuda")
    try:
        eager = step(x, 2.0)
    except EmulationError as error:
        print(error)
        raise SystemExit
    graph, factor = torch.cuda.CUDAGraph(), 2.0
    with torch.cuda.graph(graph):
        out = step(x + 1, factor)
        scaled[(3,)](x, kept, 40, factor, BLOCK=16)
    undone = kept.sum().item()
    x.fill_(3)
    factor = 5.0
    graph.replay()
    print(eager.sum().item(), undone, out.sum().item(), kept.sum().item(), len(tuned.cache))
print(len(tuned.cache))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment with torch 2.11, ours on its path; several gigabytes, some minutes."""
    directory = tmp_path_factory.mktemp("torch_2_11")
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    found = directory / "bin" / "python"
    install = [str(found), "-m", "pip", "install", "--quiet", *PACKAGES, str(ROOT)]
    result = subprocess.run(install, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        *_, why = result.stderr.strip().splitlines() or ["no message"]
        pytest.skip(f"torch 2.11 cannot be installed here: {why}")
    yield found
    shutil.rmtree(directory)


def run(python, *arguments, **environment):
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [str(python), *arguments]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


def test_the_emulators_tests_pass_on_torch_2_11(python):
    files = sorted(str(path) for path in (ROOT / "tests").glob("test_emulator_*.py") if path != Path(__file__))
    result = run(python, "-m", "pytest", "-p", "no:cacheprovider", *files)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


def test_a_triton_kernel_is_captured_in_its_interpreter(python):
    result = run_program(python, TRITON_INTERPRET="1")
    assert result.stdout.split() == ["80.0", "0.0", "320.0", "240.0", "1", "0"], result.stderr[-2000:]


def test_a_triton_kernel_without_its_interpreter_is_named(python):
    result = run_program(python, TRITON_INTERPRET="0")
    assert "Triton kernel `scaled` runs on a GPU only" in result.stdout, result.stderr[-2000:]


def run_program(python, **environment):
    """Triton reads a kernel's source, so the program is a file."""
    path = python.parent / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return run(python, str(path), **environment)
