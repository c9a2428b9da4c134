"""The tutorial, executed: its files, its edits, its commands, and what it says they print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = (Path(__file__).parent.parent / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(?P<words>[^\n]+)\n(?P<text>.*?)```", re.DOTALL)
EXIT_CODES = [1, 1, 0, 0, 0]
"""Of the tutorial's commands, in order."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> list[tuple[str, int, str, str]]:
    """Every command: the words, its exit code, what it printed, and the text that the tutorial shows."""
    directory = tmp_path_factory.mktemp("tutorial")
    source = directory / "decode.py"
    replaced = ""
    results = []
    for block in BLOCK.finditer(TUTORIAL):
        words, text = block["words"], block["text"]
        if words.startswith("python title="):
            source.write_text(text)
        elif words == "python replace":
            replaced = text
        elif words == "python by":
            before = source.read_text()
            assert before.count(replaced) == 1
            source.write_text(before.replace(replaced, text))
        elif words == "console":
            command = text.removeprefix("$ capturelint ").strip()
            run = subprocess.run(
                [sys.executable, "-m", "capturelint", *command.split()],
                capture_output=True,
                text=True,
                check=False,
                cwd=directory,
                stdin=subprocess.DEVNULL,
            )
            results.append((command, run.returncode, run.stdout, ""))
        elif words == "text":
            command, code, printed, _ = results.pop()
            results.append((command, code, printed, text))
    return results


def test_every_command_ends_as_the_tutorial_says(ran):
    assert [code for _, code, _, _ in ran] == EXIT_CODES


def test_every_command_prints_what_the_tutorial_shows(ran):
    # The version of torch is that of the machine.
    for command, _, printed, shown in ran:
        if shown:
            assert re.sub(r"\(torch [^)]+\)", "(torch TORCH)", printed) == shown, command


def test_the_silent_error_is_seen_at_every_batch_size(ran):
    printed = next(out for command, _, out, _ in ran if command.startswith("verify"))
    assert printed.count("  replay-differs  ") == 2
