"""A report as SARIF 2.1.0, which code-scanning services keep from run to run by the findings' fingerprints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from capturelint.catalog import Rule, load_rules
from capturelint.escape import visible
from capturelint.finding import Finding
from capturelint.place import Place
from capturelint.report.model import CheckReport, relative
from capturelint.report.page import BUILT_IN
from capturelint.vocabulary import Confidence

Json = dict[str, object]
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {
    Confidence.PROVEN: "error",
    Confidence.CERTAIN: "error",
    Confidence.LIKELY: "warning",
    Confidence.POSSIBLE: "note",
}


def render_sarif(report: CheckReport) -> str:
    """One run. Suppressed findings are in it, marked, as the format wants."""
    rules = load_rules()
    names = sorted(rules.keys() | {finding.rule for finding in report.findings})
    driver: Json = {
        "name": "capturelint",
        "version": report.version,
        "semanticVersion": report.version,
        "rules": [descriptor(name, rules) for name in names],
    }
    run: Json = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": Path.cwd().as_uri().rstrip("/") + "/"}},
        "invocations": [invocation(report)],
        "results": [result(finding, names) for finding in sorted(report.findings, key=lambda f: f.order)],
        "properties": {"torch": report.torch or "every supported version", "entries": len(report.entries)},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def descriptor(name: str, rules: Mapping[str, Rule]) -> Json:
    """A rule as code-scanning services show it."""
    rule = rules.get(name)
    if rule is None:
        summary = BUILT_IN[name].summary if name in BUILT_IN else name
        return {"id": name, "shortDescription": {"text": summary}}
    cure = "\n".join(f"- {text}" for text in rule.help)
    sources = "\n".join(f"- {source}" for source in rule.sources)
    return {
        "id": name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "help": {
            "text": f"{rule.why}\n\nHow to repair it:\n{cure}\n\nSources:\n{sources}",
            "markdown": f"{rule.why}\n\n**How to repair it**\n\n{cure}\n\n**Sources**\n\n{sources}",
        },
        "defaultConfiguration": {"level": "error"},
        "properties": {"outcome": rule.outcome.value, "tags": ["cuda-graphs", rule.outcome.value]},
    }


def invocation(report: CheckReport) -> Json:
    """Whether every file could be checked."""
    notifications: list[Json] = [
        {
            "level": "error",
            "message": {"text": visible(error.reason)},
            "locations": [{"physicalLocation": {"artifactLocation": artifact(error.path)}}],
        }
        for error in report.errors
    ]
    return {"executionSuccessful": not report.errors, "toolExecutionNotifications": notifications}


def result(finding: Finding, names: Sequence[str]) -> Json:
    """One finding."""
    record: Json = {
        "ruleId": finding.rule,
        "ruleIndex": names.index(finding.rule),
        "level": LEVELS[finding.confidence],
        "message": {"text": visible("; ".join([finding.message, *(f"help: {text}" for text in finding.help)]))},
        "properties": {"outcome": finding.outcome.value, "confidence": finding.confidence.word},
    }
    if finding.place is not None:
        record["locations"] = [location(finding.place)]
    if finding.fingerprint:
        record["partialFingerprints"] = {"capturelint/v1": finding.fingerprint}
    if finding.trail and finding.place is not None:
        steps = [
            {"location": location(Place(step.path, step.line), f"in {visible(step.name)}")} for step in finding.trail
        ]
        steps.append({"location": location(finding.place, visible(finding.message))})
        record["codeFlows"] = [{"threadFlows": [{"locations": steps}]}]
    if finding.suppressed:
        record["suppressions"] = [{"kind": "inSource"}]
    return record


def location(place: Place, message: str | None = None) -> Json:
    """A place; in a notebook the region's lines are those of the cell, which stands in the properties."""
    region: Json = {"startLine": place.line, "startColumn": place.column}
    if place.end_line and place.end_column:
        region |= {"endLine": place.end_line, "endColumn": place.end_column}
    record: Json = {"physicalLocation": {"artifactLocation": artifact(place.path), "region": region}}
    if message is not None:
        record["message"] = {"text": message}
    if place.cell is not None:
        record["properties"] = {"cell": place.cell}
    return record


def artifact(path: Path) -> Json:
    """A path as a URI, relative to the working directory where it lies below it."""
    name = relative(path)
    if name.startswith(("../", "/")):
        return {"uri": "file://" + quote(path.resolve().as_posix().encode("utf-8", "surrogateescape"))}
    return {"uri": quote(name.encode("utf-8", "surrogateescape")), "uriBaseId": "SRCROOT"}
