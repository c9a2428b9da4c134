"""``action.yml``: its steps, run as they are written, by the shell that GitHub's runner would use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
EXPRESSION = re.compile(r"\$\{\{ inputs\.([\w-]+) \}\}")
BAD = """
import torch

def build(device):
    return torch.nn.Linear(4, 4).to(device)

def inputs(batch, step, device):
    return {"x": torch.zeros(batch, 4, device=device)}

@torch.no_grad()
def step(state, x):
    y = state(x)
    if y.sum().item() > 0:
        y = y + 1
    return y
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the action's steps are bash scripts")


def run(name: str, cwd: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """A step's script with its environment filled in from the inputs, their defaults included."""
    step = STEPS[name]
    inputs = {key: str(value["default"]) for key, value in ACTION["inputs"].items()}
    inputs |= {"python": sys.executable} | {key.replace("_", "-"): value for key, value in given.items()}
    filled = {key: EXPRESSION.sub(lambda found: inputs[found[1]], text) for key, text in step["env"].items()}
    script = cwd / "step.sh"
    script.write_text(step["run"], encoding="utf-8")
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    variables = {**os.environ, **filled, "GITHUB_ACTION_PATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=variables)


def test_no_input_is_pasted_into_a_script():
    assert [name for name, step in STEPS.items() if "${{" in step["run"]] == []


def test_every_input_has_a_use_and_a_default():
    used = {found for step in STEPS.values() for found in re.findall(r"inputs\.([\w-]+)", str(step))}

    assert used == ACTION["inputs"].keys()
    assert all("default" in value for value in ACTION["inputs"].values())


def test_the_check_step_annotates_the_line_and_fails(tmp_path):
    (tmp_path / "model.py").write_text(BAD, encoding="utf-8")
    result = run("Check", tmp_path)

    assert result.returncode == 1, result.stderr
    assert result.stdout.startswith("::error title=capturelint (host-sync),file=model.py,line=13,")


def test_the_check_step_takes_several_paths_and_arguments(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text(BAD, encoding="utf-8")
    result = run("Check", tmp_path, paths="a.py b.py", check_args="--exit-zero", format="concise")

    assert result.returncode == 0, result.stderr
    assert {"a.py", "b.py"} == {line.split(":")[0] for line in result.stdout.splitlines() if "host-sync" in line}


def test_the_logs_step_fails_on_a_skip(tmp_path):
    (tmp_path / "ci.log").write_text("skipping cudagraphs due to bisector\n", encoding="utf-8")
    (tmp_path / "clean.log").write_text("fine\n", encoding="utf-8")

    assert run("Search logs", tmp_path, logs="ci.log clean.log").returncode == 1
    assert run("Search logs", tmp_path, logs="clean.log").returncode == 0
    assert run("Search logs", tmp_path, logs="ci.log", fail_on="graph-break").returncode == 0


def test_an_input_that_looks_like_a_command_is_none(tmp_path):
    result = run("Search logs", tmp_path, logs="$(touch made) `touch made` ;touch made")

    assert result.returncode == 2
    assert not (tmp_path / "made").exists()


def test_the_verify_step_finds_the_unsafe_line_on_an_emulated_device(tmp_path):
    pytest.importorskip("torch", reason="verify runs the step, so it needs torch")
    (tmp_path / "model.py").write_text(BAD, encoding="utf-8")
    result = run("Verify on an emulated device", tmp_path, verify="model.py", buckets="2")

    assert result.returncode == 1, result.stderr
    assert "file=model.py,line=13" in result.stdout


def test_the_install_step_installs_the_action_s_own_sources(tmp_path, monkeypatch):
    pytest.importorskip("hatchling", reason="builds the package without a network")
    target = tmp_path / "site"
    # pip reads PIP_NO_BUILD_ISOLATION=0 as "no isolation" (pip issue 8252).
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_TARGET": str(target)}
    for key, value in offline.items():
        monkeypatch.setenv(key, value)
    result = run("Install capturelint", tmp_path)

    assert result.returncode == 0, result.stderr
    assert (target / "capturelint" / "rules" / "messages.yaml").is_file()


def test_the_example_in_the_documentation_uses_the_action_as_it_is():
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), re.DOTALL)
    (job,) = yaml.safe_load(blocks[0])["jobs"].values()
    (given,) = [step["with"] for step in job["steps"] if step.get("uses", "").startswith("capturelint/capturelint@")]

    assert given.keys() <= ACTION["inputs"].keys()
