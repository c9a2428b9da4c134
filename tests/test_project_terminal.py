"""What a reader sees: rows that fit 80 columns, a last line that counts, colour and progress only where they help."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_pages import CHECK, MEASURED, read
from test_project_documented import ALL
from typer.testing import CliRunner

from capturelint.cli import COMMANDS, app
from capturelint.cli.doctor import Answer, lines
from capturelint.cli.terminal import has_colour, shows_progress
from capturelint.logs.report import read_logs
from capturelint.report import Format, render
from capturelint.report.logs import render_logs
from capturelint.report.page import list_text
from capturelint.report.verify_text import render_verify_text
from capturelint.report.wrapping import rows

ROOT = Path(__file__).parent.parent
TARGET = str(ROOT / "fixtures/targets/int_position.py")
COLUMNS = 80


def too_wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > COLUMNS]


REPORTS = {
    "check": lambda: render(CHECK, Format.TEXT, read=read, width=COLUMNS),
    "statistics": lambda: render(CHECK, Format.TEXT, read=read, width=COLUMNS, statistics=True),
    "verify": lambda: render_verify_text(MEASURED, read, width=COLUMNS),
    "logs": lambda: render_logs(read_logs(sorted(Path().glob("*.log"))), Format.TEXT, width=COLUMNS),
    "explain": lambda: list_text(COLUMNS),
    "doctor": lambda: "\n".join(lines([Answer("driver", None, "not on the path; " * 9)], COLUMNS)),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_fits_a_terminal(monkeypatch, name):
    monkeypatch.chdir(ROOT / "fixtures/logs")  # a path of a log is as long as it was given
    assert len(REPORTS[name]().splitlines()) > 1
    assert too_wide(REPORTS[name]()) == []


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_terminal_and_is_cut_nowhere(name):
    result = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": str(COLUMNS)}, terminal_width=COLUMNS)
    assert too_wide(result.stdout) == []
    assert not re.search(r"\w\.\.\.$", result.stdout, re.MULTILINE)
    assert "Example: capturelint" in result.stdout


def test_every_help_tells_the_exit_codes():
    assert [name for name, command in ALL.items() if "Exit codes: 0" not in command.help] == []


LAST = {
    ("check", TARGET): r"1 finding in 1 file \(1 silent\)",
    ("check", TARGET, "--statistics"): r"1 finding in 1 file \(1 silent\)",
    ("check", TARGET, "--format", "concise"): r"1 finding in 1 file \(1 silent\)",
    ("logs", str(ROOT / "fixtures/logs/one-liners.log")): r"\d+ findings in 1 log .*",
    ("plan", "CSV"): "2 sizes to capture: 1,3",
    ("explain",): r"\d+ rules",
    ("explain", "host-sync"): r"\d+ examples \(.*\)",
    ("facts", TARGET): "1 entry, 1 event in 1 file",
    ("init", "DIRECTORY"): "nothing written; --yes writes 2 files",
}


@pytest.mark.parametrize("words", LAST)
def test_the_last_line_is_a_count(tmp_path, words):
    histogram = tmp_path / "batches.csv"
    histogram.write_text("batch_size,count\n1,40\n3,20\n")
    given = {"CSV": str(histogram), "DIRECTORY": str(tmp_path)}
    result = CliRunner().invoke(app, [given.get(word, word) for word in words])
    assert re.fullmatch(LAST[words], result.stdout.splitlines()[-1])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ENVIRONMENTS = [
    ({}, True, True),
    ({"TERM": "dumb"}, False, False),
    ({"NO_COLOR": "1"}, False, True),
    ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, True),
    ({"NO_COLOR": ""}, True, True),
    ({"CI": "true"}, True, False),
    ({"CI": "false"}, True, True),
]


@pytest.mark.parametrize(("environment", "colour", "progress"), ENVIRONMENTS)
def test_a_terminal_gets_colour_and_progress_unless_told_otherwise(monkeypatch, environment, colour, progress):
    monkeypatch.setattr(os, "environ", environment)
    assert (has_colour(Terminal()), shows_progress(Terminal())) == (colour, progress)


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}])
def test_a_pipe_gets_colour_only_where_it_is_forced(monkeypatch, environment):
    monkeypatch.setattr(os, "environ", environment)
    assert (has_colour(io.StringIO()), shows_progress(io.StringIO())) == (bool(environment), False)


def test_prose_goes_on_below_itself_and_no_word_is_cut():
    assert rows("one two three four five six seven eight", 24, taken=4) == [
        "one two three four",
        "    five six seven eight",
    ]
    assert rows("one two three four five six", 24, taken=20) == ["", "    one two three four", "    five six"]
    assert rows("a word " * 9, None) == ["a word " * 9]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_report_without_room_is_an_error_and_no_finding():
    command = [sys.executable, "-m", "capturelint", "explain"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "error: No space left on device\n")


def test_a_command_line_that_was_closed_before_the_start_still_ends_with_its_code(monkeypatch):
    from capturelint.cli import main

    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(sys, "argv", ["capturelint", "check", TARGET])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    sys.stdout.close()
    sys.stderr.close()


def test_an_unknown_torch_is_a_usage_error():
    result = CliRunner().invoke(app, ["check", TARGET, "--torch", "banana"])
    assert "say a version or a range" in str(result.exception)
