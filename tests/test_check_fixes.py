"""Fixes: what ``check --fix`` writes, that a second check is content with it, and that the rest of the file stays."""

import subprocess
import sys
from pathlib import Path

import pytest

from capturelint.static.check import Options, check
from capturelint.static.fixes import fix_text
from capturelint.vocabulary import Confidence

HEAD = "import torch\n\n\nclass Decoder(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
BUFFERS = (
    '        self.register_buffer("state", torch.zeros(4))\n        self.register_buffer("flags", torch.zeros(4))\n\n'
)


def program(statement: str) -> str:
    step = f"    def decode_step(self, x: torch.Tensor):\n        {statement}\n        return x + self.state\n"
    return f"{HEAD}{BUFFERS}{step}"


def fixed(tmp_path: Path, text: str, unsafe: bool = False) -> str:
    path = tmp_path / "model.py"
    path.write_text(text)
    shown = [f for f in check([path], Options(root=tmp_path)).findings if f.confidence >= Confidence.LIKELY]
    assert shown, "the program has to have a finding"
    return fix_text(text, shown, unsafe).text


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("self.flags[0] = 1.5  # kept", "self.flags[0:1] = 1.5  # kept"),
        ("self.flags[-1] = 2", "self.flags[-1:] = 2"),
        ("x = x + torch.tensor(1.0, device=x.device)", "x = x + torch.full((), 1.0, device=x.device)"),
        ("x = x.clamp(min=torch.tensor(-1, device='cuda'))", "x = x.clamp(min=torch.full((), -1, device='cuda'))"),
    ],
)
def test_a_safe_fix_satisfies_the_rule(tmp_path: Path, bad: str, good: str):
    text = fixed(tmp_path, program(bad))
    assert text == program(good)
    again = tmp_path / "again.py"
    again.write_text(text)
    assert [f.rule for f in check([again], Options(root=tmp_path)).findings if f.confidence >= Confidence.LIKELY] == []


def test_an_unsafe_fix_waits_to_be_asked_for(tmp_path: Path):
    text = program("self.state = self.state * 0.5 + x")
    assert fixed(tmp_path, text) == text
    assert fixed(tmp_path, text, unsafe=True) == program("self.state.copy_(self.state * 0.5 + x)")


def test_a_tensor_made_from_a_list_is_left_to_its_author(tmp_path: Path):
    text = program("x = x[torch.tensor([0, 1], device=x.device)]")
    assert fixed(tmp_path, text) == text


def test_diff_shows_a_patch_and_writes_nothing(tmp_path: Path):
    path = tmp_path / "model.py"
    path.write_text(program("self.flags[0] = 1.5"))
    command = [sys.executable, "-m", "capturelint", "check", str(path), "--diff"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 1
    assert "-        self.flags[0] = 1.5\n+        self.flags[0:1] = 1.5\n" in run.stdout
    assert path.read_text() == program("self.flags[0] = 1.5")


def test_fix_writes_and_reports_what_remains(tmp_path: Path):
    path = tmp_path / "model.py"
    path.write_text(program("self.flags[0] = x.sum().item()"))
    command = [sys.executable, "-m", "capturelint", "check", str(path), "--fix", "--format", "concise"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 1
    assert "self.flags[0:1] = x.sum().item()" in path.read_text()
    assert "host-sync" in run.stdout
    assert "upload" not in run.stdout
