"""Findings -> fingerprints, and a baseline file that tells known findings from new ones.

A fingerprint is made of the rule, the file, the name of the function around the finding, the text of its line without
spacing, and which of several equal ones it is. So it survives moved lines and changes elsewhere in the file; it ends
when the line itself changes, which is when someone should look again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capturelint.errors import ConfigError, SourceError
from capturelint.finding import Finding
from capturelint.static.files import Sources

SCHEMA = 1
Spans = list[tuple[int, int, str]]


@dataclass(frozen=True, slots=True)
class Known:
    """One entry of a baseline: the fingerprint, and enough to find the place by eye."""

    fingerprint: str
    rule: str
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.rule} in {self.path} (line {self.line} then): {self.message}"


@dataclass(frozen=True, slots=True)
class Compared:
    """What a baseline says: findings that it does not know, how many it knows, and entries that no longer occur."""

    findings: tuple[Finding, ...]
    num_known: int
    gone: tuple[Known, ...]


def with_fingerprints(
    findings: Iterable[Finding],
    root: Path,
    sources: Sources | None = None,
    around: Mapping[tuple[Path, int], str] | None = None,
) -> tuple[Finding, ...]:
    """The findings in order of place, each with its fingerprint; paths are taken from ``root``.

    ``around`` is what is known of the function around a file's line; other files with findings are parsed for it.
    """
    texts, named = sources or Sources(), around or {}
    seen: dict[tuple[str, ...], int] = defaultdict(int)
    functions: dict[Path, Spans] = {}
    result = []
    for finding in sorted(findings, key=lambda finding: finding.order):
        place = finding.place
        if place is None:
            key = (finding.rule, "", "", finding.message)
        else:
            lines = texts.lines(place.path, place.cell)
            line = lines[place.line - 1] if 1 <= place.line <= len(lines) else ""
            # Lines of a notebook are counted per cell, so its functions are not looked up.
            function = "" if place.cell else named.get((place.path, place.line))
            if function is None:
                if place.path not in functions:
                    functions[place.path] = function_spans(place.path, texts)
                function = enclosing(functions[place.path], place.line)
            key = (finding.rule, from_root(place.path, root), function, "".join(line.split()))
        occurrence = seen[key]
        seen[key] += 1
        digest = hashlib.sha256("\0".join((*key, str(occurrence))).encode("utf-8", "surrogatepass")).hexdigest()
        result.append(replace(finding, fingerprint=digest[:32]))
    return tuple(result)


def function_spans(path: Path, sources: Sources) -> Spans:
    """The spans of a file; none where it cannot be parsed, for it then has no names."""
    try:
        return spans_of(ast.parse(sources.source(path).text))
    except (SourceError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def spans_of(tree: ast.Module) -> Spans:
    """First line, last line and qualified name of every function and class of a module, outer ones first."""
    spans: Spans = []
    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        node, prefix = pending.pop()
        for child in statements_in(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                spans.append((child.lineno, child.end_lineno or child.lineno, name))
            pending.append((child, name))
    return sorted(spans, key=lambda span: (span[0], -span[1]))


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in the blocks of a statement: functions are defined nowhere else."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        found = getattr(node, block, ())
        yield from found if isinstance(found, list) else ()


def enclosing(spans: Spans, line: int) -> str:
    """The innermost function or class around a line, or nothing."""
    return next((name for first, last, name in reversed(spans) if first <= line <= last), "")


def from_root(path: Path, root: Path) -> str:
    """A path as a baseline stores it: from the root, with forward slashes, the same on every machine."""
    try:
        return Path(os.path.relpath(path, root)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()


def write_baseline(findings: Iterable[Finding], path: Path, root: Path) -> int:
    """Write the findings that are not suppressed; returns how many. They need fingerprints. Raises ``ConfigError``."""
    entries = [
        {
            "fingerprint": finding.fingerprint,
            "rule": finding.rule,
            "path": from_root(finding.place.path, root) if finding.place else "",
            "line": finding.place.line if finding.place else 0,
            "message": finding.message,
        }
        for finding in sorted(findings, key=lambda finding: finding.order)
        if not finding.suppressed
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"schema": SCHEMA, "findings": entries}, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: the baseline cannot be written: {error.strerror}") from error
    return len(entries)


def read_baseline(path: Path) -> tuple[Known, ...]:
    """The entries of a baseline. Raises ``ConfigError``."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: the baseline cannot be read: {error.strerror}; create it with --write-baseline"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: the baseline is not valid JSON: {error}") from error
    match record:
        case {"schema": int(schema)} if schema != SCHEMA:
            raise ConfigError(f"{path}: a baseline of schema {schema}, this version reads {SCHEMA}; write it again")
        case {"findings": list(entries)}:
            return tuple(known(path, entry) for entry in entries)
        case _:
            raise ConfigError(f"{path}: not a baseline; create one with --write-baseline")


def known(path: Path, entry: object) -> Known:
    """One entry of a baseline file."""
    match entry:
        case {
            "fingerprint": str(fingerprint),
            "rule": str(rule),
            "path": str(file),
            "line": int(line),
            "message": str(message),
        }:
            return Known(fingerprint, rule, file, line, message)
        case _:
            raise ConfigError(f"{path}: an entry is not complete; write the baseline again")


def apply_baseline(
    findings: Iterable[Finding], path: Path, *, root: Path | None = None, checked: Sequence[Path] = ()
) -> Compared:
    """Compare findings, which need fingerprints, with a baseline. Raises ``ConfigError``.

    An entry counts as gone only where its file is under one of the ``checked`` paths (all of them by default), so
    that checking one file does not report the others' entries. A suppressed finding is neither known nor new.
    """
    entries = {entry.fingerprint: entry for entry in read_baseline(path)}
    given = tuple(findings)
    new = tuple(f for f in given if f.suppressed or f.fingerprint not in entries)
    met = {finding.fingerprint for finding in given}
    base = root or path.parent
    gone = tuple(entry for key, entry in entries.items() if key not in met and is_under(base / entry.path, checked))
    return Compared(new, len(given) - len(new), gone)


def is_under(path: Path, checked: Sequence[Path]) -> bool:
    """Whether a file lies under one of the paths; true without paths."""
    real = Path(os.path.realpath(path))
    return not checked or any(real.is_relative_to(os.path.realpath(top)) for top in checked)
