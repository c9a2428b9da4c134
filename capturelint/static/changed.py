"""A git revision -> the lines that changed since, to report only findings on those (``--diff-base``).

Files that git does not track yet count as changed from the first line to the last, and so does a notebook that
changed at all, since the lines of its cells are not lines of the file.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from capturelint.errors import UsageError
from capturelint.finding import Finding

HUNK = re.compile(rb"@@ -\d+(?:,\d+)? \+(?P<start>\d+)(?:,(?P<count>\d+))? @@")
# The monitor is a program that a repository's configuration can name; nothing of a checked repository is run.
GIT = ("git", "-c", "core.fsmonitor=false")
DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-renames", "--diff-filter=d", "--no-color")


@dataclass(frozen=True, slots=True)
class Changes:
    """Changed lines by resolved path; ``None`` is the whole file."""

    files: Mapping[Path, tuple[range, ...] | None]

    def touch(self, finding: Finding) -> bool:
        """Whether a finding stands on a changed line; one without a place always counts."""
        place = finding.place
        if place is None:
            return True
        path = Path(os.path.realpath(place.path))
        if path not in self.files:
            return False
        ranges = self.files[path]
        if ranges is None or place.cell is not None:
            return True
        last = max(place.line, place.end_line)
        return any(lines.start <= last and place.line < lines.stop for lines in ranges)


def changed_since(revision: str, directory: Path) -> Changes:
    """What changed in the repository around ``directory`` since a revision, the working tree included.

    Raises ``UsageError`` where there is no repository, no such revision, or no git.
    """
    if revision.startswith("-"):
        raise UsageError(f"--diff-base {revision}: not a git revision")
    top = Path(git(directory, "rev-parse", "--show-toplevel").decode("utf-8", "surrogateescape").rstrip("\n"))
    names = split(git(top, *DIFF, "--name-only", "-z", revision, "--"))
    # The names come apart from the hunks and in the same order, so no name has to be parsed out of a quoted header.
    sections = re.split(rb"^diff --git .*$", git(top, *DIFF, "--unified=0", revision, "--"), flags=re.MULTILINE)[1:]
    files: dict[Path, tuple[range, ...] | None] = {
        Path(os.path.realpath(top / name)): hunks(section) for name, section in zip(names, sections, strict=True)
    }
    untracked = split(git(top, "ls-files", "--others", "--exclude-standard", "-z"))
    return Changes(files | {Path(os.path.realpath(top / name)): None for name in untracked})


def on_changed_lines(findings: Iterable[Finding], changes: Changes) -> tuple[Finding, ...]:
    """The findings that stand on changed lines."""
    return tuple(finding for finding in findings if changes.touch(finding))


def hunks(section: bytes) -> tuple[range, ...]:
    """The lines of the new file that a diff without context names; a pure deletion names none."""
    found = ((int(hunk["start"]), int(hunk["count"] or 1)) for hunk in HUNK.finditer(section))
    return tuple(range(start, start + count) for start, count in found if count)


def split(names: bytes) -> list[str]:
    """Names that git ends with a NUL each."""
    return [name.decode("utf-8", "surrogateescape") for name in names.split(b"\0") if name]


def git(directory: Path, *words: str) -> bytes:
    """What a git command prints. Raises ``UsageError`` with git's own words."""
    here = directory if directory.is_dir() else directory.parent
    try:
        run = subprocess.run([*GIT, *words], cwd=here, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise UsageError(f"--diff-base needs git: {error.strerror}") from error
    if run.returncode:
        said = run.stderr.decode("utf-8", "replace").strip().splitlines() or ["no answer"]
        raise UsageError(f"--diff-base: git {words[0]}: {said[0].removeprefix('fatal: ')}")
    return run.stdout
