"""What ``facts`` shows of a step, as text and as JSON."""

import json

import pytest
from typer.testing import CliRunner

from capturelint.cli import app

STEP = """
import torch
from somewhere import kernel


class Decoder:
    def __init__(self):
        self.count = 0
        self.cache = torch.zeros(2, 8, device="cuda")

    def decode_step(self, x: torch.Tensor):
        self.count += 1
        y = self.scale(x, 2)
        kernel(y)
        torch.no_such_operation(y)
        return y + self.cache

    def scale(self, x, by):
        return torch.mul(x, by)
"""


@pytest.fixture
def facts(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["facts", "model.py", *words])


def test_values_are_shown_at_each_call(facts):
    text = facts().stdout
    assert (
        "model.py:13 `self.scale(x, 2)` Decoder.scale(device tensor, rank unknown, unknown, likely; constant 2)" in text
    )


def test_homes_and_changing_numbers_are_shown(facts):
    text = facts().stdout
    assert "Decoder.cache: device tensor, rank 2, float, certain, home cache" in text
    assert "Decoder.count: host number, changes at every step" in text


def test_operations_that_the_catalogue_does_not_list_are_shown(facts):
    assert json.loads(facts("--format", "json").stdout)["unlisted"] == ["no_such_operation", "somewhere.kernel"]


def test_the_last_line_counts(facts):
    assert facts().stdout.splitlines()[-1] == "1 entry, 0 events in 1 file"


def test_calls_are_in_the_record(facts):
    calls = json.loads(facts("--format", "json").stdout)["entries"][0]["calls"]
    assert [(call["line"], call["callee"]) for call in calls] == [
        (13, "Decoder.scale"), (14, "somewhere.kernel"), (15, "torch.no_such_operation"), (19, "torch.mul"),
    ]  # fmt: skip


def test_what_is_said_of_a_run_stands_before_the_count(facts, tmp_path):
    assert facts("--bind", "x=gone:Gone").stdout.splitlines()[-2] == (
        "x=gone:Gone binds nothing: no module 'gone' in the checked paths"
    )
    (tmp_path / "model.py").write_text(
        STEP.replace("class Decoder", "class Decoder(torch.nn.Module)").replace("decode_step", "forward")
    )
    assert facts().stdout.splitlines() == [
        "to check this one, add --entry model.py:Decoder.forward",
        "0 entries, 0 events in 1 file",
    ]
