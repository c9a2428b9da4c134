"""Every block of fixtures/rules is checked: marked lines are found by exactly their rules, all others are silent.

``# error: [rule]`` expects a finding that is shown by default, ``# missed: [rule]`` is a known miss and fails once it
is found. A block ```` ```py torch=">=2.6" ```` is checked for that declared range.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from capturelint.report.page import MARKER, Block, read_blocks
from capturelint.static.check import Checked, Options, check
from capturelint.vocabulary import Confidence

FIXTURES = Path(__file__).parents[1] / "fixtures" / "rules"
Marks = dict[int, set[str]]


@dataclass(frozen=True)
class Case:
    """A block and the rule's page that it stands on."""

    page: str
    block: Block

    @property
    def id(self) -> str:
        return f"{self.page}:{self.block.line} {self.block.title}"

    @property
    def torch(self) -> str | None:
        """The torch range that the block's project declares."""
        given = (word.removeprefix("torch=") for word in self.block.words if word.startswith("torch="))
        return next((word.strip('"') for word in given), None)

    def marks(self, kind: str) -> Marks:
        """Line -> rules, for marks of one kind."""
        found: Marks = {}
        for number, line in enumerate(self.block.code.splitlines(), 1):
            for mark in MARKER.finditer(line):
                if mark["kind"] == kind:
                    found.setdefault(number, set()).update(re.split(r"[,\s]+", mark["rules"].strip()))
        return found


CASES = tuple(Case(path.stem, block) for path in sorted(FIXTURES.glob("*.md")) for block in read_blocks(path))


def write(case: Case, directory: Path) -> Path:
    path = directory / "block.py"
    path.write_text(case.block.code)
    return path


def shown(checked: Checked) -> Marks:
    """Line -> rules that ``check`` reports by default."""
    lines: Marks = {}
    for finding in checked.findings:
        if finding.confidence >= Confidence.LIKELY and not finding.suppressed:
            assert finding.place is not None
            lines.setdefault(finding.place.line, set()).add(finding.rule)
    return lines


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_marked_lines_are_found_and_no_others(case, tmp_path):
    checked = check([write(case, tmp_path)], Options(torch=case.torch, root=tmp_path))
    assert checked.entries, "nothing is recorded here, so silence would mean nothing"
    assert shown(checked) == case.marks("error")


def marks_on_lines_of_their_own() -> Iterator[str]:
    for case in CASES:
        if re.search(r"(?m)^\s*#\s*(error|missed):", case.block.code):
            yield case.id


def test_marks_stand_on_code():
    assert list(marks_on_lines_of_their_own()) == []


def test_every_block_has_a_title():
    assert [case.id for case in CASES if not case.block.title or case.block.title == case.page] == []
