"""What the README and the pages show is what the program prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"```console\n\$ capturelint (?P<words>[^\n]+)\n```\n```text\n(?P<output>.*?)```", re.DOTALL)
CHECKS = [match for match in SHOWN.finditer(README) if match["words"].startswith("check ")]


@pytest.mark.parametrize("shown", CHECKS, ids=lambda shown: shown["words"])
def test_a_report_in_the_readme_is_what_check_prints(shown):
    command = [sys.executable, "-m", "capturelint", *shown["words"].split()]
    printed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout
    assert shown["output"] == printed


def test_the_readme_shows_a_finding_and_two_verdicts():
    assert [match["words"].split()[0] for match in SHOWN.finditer(README)] == ["check", "verify", "verify"]


def test_the_first_two_commands_are_demo_and_test():
    assert re.findall(r"^\$ (.+?)(?: +#.*)?$", README, re.MULTILINE)[:2] == ["make demo", "make test"]


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_to_files_of_the_repository(page):
    text = re.sub(r"`[^`\n]+`", "", (ROOT / page).read_text(encoding="utf-8"))
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    built = re.compile(r"(cli|operations|json|rules/[\w-]+)\.md")  # written by docs/pages.py
    missing = [t for t in targets if not built.fullmatch(t) and not ((ROOT / page).parent / t).exists()]
    assert missing == []


def test_every_command_stands_in_the_readme():
    from capturelint.cli import COMMANDS

    assert [name for name in COMMANDS if f"capturelint {name}" not in README] == []
