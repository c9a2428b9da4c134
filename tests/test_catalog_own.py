"""Rules and operations that a project brings along, in a directory that its configuration names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEP = """\
import torch


def decode_step(model, q: torch.Tensor, lens: torch.Tensor):
    split = torch.ops.mykernels.plan_split(lens, 8)
    return torch.ops.mykernels.paged_attention(q, split)
"""
RULE = """\
name: no-planning
summary: a plan is made in the step
event: sync
where: {how: [item]}
phase: recorded
outcome: slow
message: '`{code}` plans in the recorded step'
help: ['plan before the step']
why: A plan reads the device.
runtime: []
sources: [our own design]
since: "0.1.0"
"""


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "capturelint", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "capture").mkdir()
    (tmp_path / "capturelint.toml").write_text('rules = ["capture"]\n')
    (tmp_path / "step.py").write_text(STEP)
    return tmp_path


def found(project: Path) -> list[tuple[str, int]]:
    checked = run(project, "check", "step.py", "--format", "json")
    assert checked.stderr == ""
    return [(finding["rule"], finding["line"]) for finding in json.loads(checked.stdout)["findings"]]


def test_an_operation_of_ones_own_is_known_and_a_change_of_its_row_is_seen(project):
    table = project / "capture" / "operations.yaml"
    table.write_text("operations:\n  ops.mykernels.plan_split: {effect: read}\n")
    assert found(project) == [("implicit-sync", 5)]
    table.write_text("operations:\n  ops.mykernels.plan_split: {effect: safe}\n")
    assert found(project) == []


def test_a_rule_of_ones_own_reports_and_has_a_page(project):
    (project / "capture" / "no-planning.yaml").write_text(RULE)
    (project / "step.py").write_text(STEP.replace("lens, 8", "lens.item(), 8"))
    assert found(project) == [("host-sync", 5), ("no-planning", 5)]
    assert run(project, "explain", "no-planning").stdout.startswith("no-planning: a plan is made in the step\n")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "operations.yaml",
            "operations:\n  f: {efect: read}\n",
            ":2: operation 'f' has the unknown key 'efect'; did",
        ),
        ("operations.yaml", "operations:\n  f: {effect: reed}\n", ":2: unknown effect 'reed'; did you mean 'read'?"),
        ("operations.yaml", "operations:\n  f: {cases: [x]}\n", ":2: operation 'f' has 'params' that are no list, or"),
        (
            "operations.yaml",
            "operations:\n  f: {when: {host: x}}\n",
            ":2: operation 'f' has a 'when' that is no",
        ),
        ("host-sync.yaml", RULE, "there is a rule 'host-sync' already"),
        ("no-planning.yaml", RULE.replace("event: sync", "event: synk"), ":3: unknown event 'synk'; did you mean"),
        ("no-planning.yaml", RULE.replace("{code}", "{cod}"), ":7: no event has a field 'cod'; did you mean 'code'?"),
        ("no-planning.yaml", RULE.replace("{code}", "{code!q}"), ":7: 'message' is no text with fields in braces: "),
        ("no-planning.yaml", RULE.replace("{how:", "{hw:"), ":4: no event has a field 'hw'; did you mean 'how'?"),
        ("no-planning.yaml", "event: [\n", ":2:1: not valid YAML: did not find expected node content"),
    ],
)
def test_a_mistake_is_named_with_its_file_in_one_line(project, name, text, said):
    (project / "capture" / name).write_text(text)
    checked = run(project, "check", "step.py")
    assert (checked.returncode, checked.stderr.count("\n")) == (2, 1)
    assert name in checked.stderr
    assert said in checked.stderr


def test_a_directory_that_is_not_there_is_an_error(project):
    (project / "capture").rmdir()
    assert run(project, "check", "step.py").stderr.endswith("capture: no such directory of rules\n")
