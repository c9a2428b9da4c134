"""A report as JUnit XML, which most CI servers draw as a list of failed tests: one suite a file, one case a finding."""

from __future__ import annotations

from itertools import groupby
from xml.etree import ElementTree

from capturelint.escape import visible
from capturelint.finding import Finding
from capturelint.report.model import CheckReport, relative


def render_junit(report: CheckReport) -> str:
    """The XML. A clean run has one suite with one passed case, so that a server does not take it for an empty run."""
    shown = report.shown
    root = ElementTree.Element("testsuites", name="capturelint")
    for path, findings in groupby(shown, key=path_of):
        add_suite(root, path, list(findings))
    for error in report.errors:
        suite = ElementTree.SubElement(root, "testsuite", name=visible(relative(error.path)), tests="1", errors="1")
        case = ElementTree.SubElement(suite, "testcase", name="read", classname=visible(relative(error.path)))
        ElementTree.SubElement(case, "error", message=visible(error.reason))
    if not len(root):
        suite = ElementTree.SubElement(root, "testsuite", name="capturelint", tests="1", failures="0", errors="0")
        ElementTree.SubElement(suite, "testcase", name="check", classname="capturelint")
    root.set("tests", str(sum(int(suite.get("tests", "0")) for suite in root)))
    root.set("failures", str(len(shown)))
    root.set("errors", str(len(report.errors)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def path_of(finding: Finding) -> str:
    """The name of a finding's suite."""
    return visible(relative(finding.place.path)) if finding.place else "capturelint"


def add_suite(root: ElementTree.Element, path: str, findings: list[Finding]) -> None:
    """One file's findings."""
    number = str(len(findings))
    suite = ElementTree.SubElement(root, "testsuite", name=path, tests=number, failures=number, errors="0")
    for finding in findings:
        line = finding.place.line if finding.place else 0
        column = finding.place.column if finding.place else 0
        case = ElementTree.SubElement(
            suite, "testcase", name=finding.rule, classname=path, file=path, line=str(line), column=str(column)
        )
        failure = ElementTree.SubElement(case, "failure", message=visible(finding.message), type=finding.outcome.value)
        failure.text = "\n".join([f"{path}:{line}:{column}", *map(visible, finding.help)])
