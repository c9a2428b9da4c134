"""A report for programs, as the contract lists it; fields are added, never changed."""

from __future__ import annotations

import json
from collections import Counter

from capturelint.finding import Finding
from capturelint.report.model import CheckReport, count_by_rule, relative
from capturelint.vocabulary import Confidence

Json = dict[str, object]


def render_json(report: CheckReport, *, statistics: bool = False) -> str:
    """The JSON of ``check``; ASCII only, so no name can break a terminal or a log."""
    counts = Counter(finding.confidence for finding in report.shown)
    summary: Json = {level.word: counts[level] for level in reversed(Confidence) if level is not Confidence.PROVEN}
    record: Json = {
        "schema": 1,
        "version": report.version,
        "torch": report.torch,
        "files": report.files,
        "entries": [
            {"path": relative(entry.path), "line": entry.line, "name": entry.name, "why": entry.why}
            for entry in report.entries
        ],
        "findings": [finding_record(finding) for finding in sorted(report.findings, key=lambda f: f.order)],
        "errors": [
            {"path": relative(error.path), "line": error.line, "reason": error.reason} for error in report.errors
        ],
        "notes": list(report.notes),
        "summary": summary | {"suppressed": report.num_suppressed, "in_baseline": report.in_baseline},
    }
    if statistics:
        record["statistics"] = dict(count_by_rule(report.shown))
    return json.dumps(record, indent=2) + "\n"


def finding_record(finding: Finding) -> Json:
    """One finding; ``cell`` only in a notebook, ``evidence`` only where something was run."""
    record: Json = {"rule": finding.rule}
    place = finding.place
    if place is not None:
        record |= {"path": relative(place.path), "line": place.line, "column": place.column}
        record |= {"end_line": place.end_line or place.line, "end_column": place.end_column or place.column}
        if place.cell is not None:
            record["cell"] = place.cell
    record |= {
        "message": finding.message,
        "help": list(finding.help),
        "outcome": finding.outcome.value,
        "confidence": finding.confidence.word,
        "trail": [{"path": relative(step.path), "line": step.line, "name": step.name} for step in finding.trail],
        "fingerprint": finding.fingerprint,
        "suppressed": finding.suppressed,
    }
    if finding.evidence is not None:
        evidence = finding.evidence
        record["evidence"] = {"text": evidence.text, "bucket": evidence.bucket, "step": evidence.step}
    return record
