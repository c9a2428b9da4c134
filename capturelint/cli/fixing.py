"""``check --diff`` and ``check --fix``: the cures that are rewritings, shown as a patch or written to the files."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from capturelint.errors import SourceError
from capturelint.finding import Finding
from capturelint.report.model import counted, relative
from capturelint.static.files import read_source
from capturelint.static.fixes import Fixed, fix_text, fixes, unified_diff

MAX_PATCHES = 50
"""Each one parses its file anew."""


def fixed_files(findings: Iterable[Finding], unsafe: bool) -> dict[Path, tuple[str, Fixed]]:
    """Old text and fixed text of every file that a fix changes. Notebooks are left alone."""
    by_file: dict[Path, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.place is not None and finding.place.cell is None:
            by_file[finding.place.path].append(finding)
    changed: dict[Path, tuple[str, Fixed]] = {}
    for path, found in sorted(by_file.items()):
        old = read_source(path).text
        fixed = fix_text(old, found, unsafe)
        if fixed.text != old:
            changed[path] = (old, fixed)
    return changed


def show_fixes(findings: Iterable[Finding], unsafe: bool) -> int:
    """Print the patch; the number of findings that it answers."""
    changed = fixed_files(findings, unsafe)
    for path, (old, fixed) in changed.items():
        sys.stdout.write(unified_diff(relative(path), old, fixed.text))
    count = sum(len(fixed.answered) for _, fixed in changed.values())
    print(f"{counted(count, 'finding')} would be fixed in {counted(len(changed), 'file')}", file=sys.stderr)
    return count


def write_fixes(findings: Iterable[Finding], unsafe: bool) -> int:
    """Write the fixes; the number of findings that they answer. Raises ``SourceError``."""
    changed = fixed_files(findings, unsafe)
    for path, (_, fixed) in changed.items():
        source = read_source(path)
        try:
            path.write_text(fixed.text, encoding=source.encoding, newline="")
        except OSError as error:
            raise SourceError(path, None, f"cannot be written: {error.strerror}") from error
    count = sum(len(fixed.answered) for _, fixed in changed.values())
    print(f"{counted(count, 'finding')} fixed in {counted(len(changed), 'file')}", file=sys.stderr)
    return count


def patches(findings: Iterable[Finding]) -> dict[Finding, str]:
    """The patch of each finding that a fix answers, unsafe ones included: to be looked at, not to be applied."""
    fixable = {fix.rule for fix in fixes()}
    found: dict[Finding, str] = {}
    for finding in [f for f in findings if f.rule in fixable][:MAX_PATCHES]:
        for path, (old, fixed) in fixed_files([finding], unsafe=True).items():
            found[finding] = unified_diff(relative(path), old, fixed.text)
    return found
