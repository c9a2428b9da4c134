"""Pages of the documentation as programs: their files are written, their edits made, their commands run.

A block with ``title=`` is a file, ``replace`` and ``by`` are an edit of the last one, ``console`` holds commands, and a
``text`` block below it is what the last of them prints.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(?P<words>[^\n]+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'title="(?P<title>[^"]+)"')


@dataclass
class Ran:
    """A command, how it ended, what it printed, and the text that the page shows."""

    command: str
    code: int
    printed: str
    shown: str = ""


def run_page(page: Path, directory: Path) -> list[Ran]:
    """Follow a page from top to bottom in an empty directory."""
    results: list[Ran] = []
    current, replaced = directory, ""
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        words, text = block["words"], block["text"]
        title = TITLE.search(words)
        if title:
            current = directory / title["title"]
            current.parent.mkdir(parents=True, exist_ok=True)
            current.write_text(text, encoding="utf-8")
        elif words.endswith(" replace"):
            replaced = text
        elif words.endswith(" by"):
            before = current.read_text(encoding="utf-8")
            assert before.count(replaced) == 1
            current.write_text(before.replace(replaced, text), encoding="utf-8")
        elif words == "console":
            results += [run(line, directory) for line in text.splitlines() if line.startswith("$ capturelint ")]
        elif words == "text" and results:
            results[-1].shown = text
    return results


def run(line: str, directory: Path) -> Ran:
    """One command line of a page."""
    command = line.removeprefix("$ capturelint ").partition("  #")[0].strip()
    ended = subprocess.run(
        [sys.executable, "-m", "capturelint", *command.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        stdin=subprocess.DEVNULL,
    )
    return Ran(command, ended.returncode, ended.stdout)
