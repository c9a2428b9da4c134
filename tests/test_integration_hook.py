"""``.pre-commit-hooks.yaml``: the hook's entry, run on files as pre-commit passes them, and by pre-commit itself."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
BAD = "import torch\n\ndef decode_step(x: torch.Tensor):\n    return x + x.max().item()\n"


def entry() -> list[str]:
    """The hook's command in this environment, which pre-commit would have installed the package into."""
    name, *arguments = shlex.split(HOOK["entry"])
    installed = shutil.which(name, path=str(Path(sys.executable).parent))
    assert installed, "the package's console script is installed by pre-commit, and by make test"
    return [installed, *arguments]


def test_the_hook_fails_on_a_file_with_a_finding(tmp_path):
    (tmp_path / "model.py").write_text(BAD, encoding="utf-8")
    result = subprocess.run([*entry(), "model.py"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert result.returncode == 1, result.stderr
    assert "model.py:4" in result.stdout


def test_the_hook_passes_a_clean_file(tmp_path):
    (tmp_path / "model.py").write_text("import torch\n", encoding="utf-8")
    result = subprocess.run([*entry(), "model.py"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout


def test_the_hook_sees_python_files_and_notebooks_in_one_run():
    assert (HOOK["id"], HOOK["types_or"], HOOK["require_serial"]) == ("capturelint-check", ["python", "jupyter"], True)


@pytest.mark.network
def test_pre_commit_installs_the_checkout_and_blocks_the_commit(tmp_path):
    assert (ROOT / ".git").exists(), "pre-commit clones the checkout"
    (tmp_path / "model.py").write_text(BAD, encoding="utf-8")
    (tmp_path / "clean.py").write_text("import torch\n", encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "model.py", "clean.py"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "pre_commit", "try-repo", str(ROOT), "capturelint-check", "--all-files"]
    cached = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home")}
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=cached)

    assert result.returncode == 1, result.stdout + result.stderr
    assert "model.py:4:16 host-sync" in result.stdout
    assert "1 finding in 1 file" in result.stdout
