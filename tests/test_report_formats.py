import json
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from capturelint.errors import SourceError
from capturelint.finding import Finding
from capturelint.place import Frame, Place
from capturelint.report import CheckReport, EntryRecord, Format, render
from capturelint.vocabulary import Confidence, Outcome

TESTS = Path(__file__).parent
SCHEMA = json.loads((TESTS / "schemas/sarif-2.1.0.json").read_text())
PUBLISHED = json.loads((TESTS.parent / "docs/schemas/check.json").read_text())
FINDING = Finding(
    rule="host-sync",
    place=Place(Path("pkg/model.py"), 41, 12, 41, 27),
    message="a device read, `token.item()`, waits in recorded code",
    help=("compare on the device",),
    outcome=Outcome.CAPTURE_ERROR,
    confidence=Confidence.CERTAIN,
    trail=(Frame(Path("pkg/model.py"), 85, "Decoder.forward"),),
    fingerprint="abc",
)
ODD = Finding(
    rule="upload",
    place=Place(Path("a,b:c%\n::error::\x1b[2J\udcff.py"), 1, 1, 2, 3, cell=4),
    message="`x\x00`, odd: 100%",
    help=(),
    outcome=Outcome.SILENT_WRONG,
    confidence=Confidence.LIKELY,
    suppressed=False,
)
SUPPRESSED = Finding("upload", Place(Path("m.py"), 3), "m", (), Outcome.SLOW, Confidence.POSSIBLE, suppressed=True)
NOWHERE = Finding("unexplained", None, "m", (), Outcome.SILENT_WRONG, Confidence.PROVEN)
REPORT = CheckReport(
    version="0.1.0",
    torch="2.11",
    files=12,
    entries=(EntryRecord(Path("pkg/model.py"), 80, "step", "plain protocol"),),
    findings=(SUPPRESSED, FINDING, ODD, NOWHERE),
    errors=(SourceError(Path("broken.py"), 7, "invalid syntax"),),
)
CLEAN = CheckReport(version="0.1.0", torch=None, files=1)


def written(format: Format, report: CheckReport = REPORT, **options: bool) -> str:
    return render(report, format, read=lambda path, cell: (), **options)


def test_json_is_the_contract():
    record = json.loads(written(Format.JSON, CheckReport("0.1.0", "2.11", 12, REPORT.entries, (FINDING,))))
    assert record == {
        "schema": 1,
        "version": "0.1.0",
        "torch": "2.11",
        "files": 12,
        "entries": [{"path": "pkg/model.py", "line": 80, "name": "step", "why": "plain protocol"}],
        "findings": [
            {
                "rule": "host-sync",
                "path": "pkg/model.py",
                "line": 41,
                "column": 12,
                "end_line": 41,
                "end_column": 27,
                "message": "a device read, `token.item()`, waits in recorded code",
                "help": ["compare on the device"],
                "outcome": "capture-error",
                "confidence": "certain",
                "trail": [{"path": "pkg/model.py", "line": 85, "name": "Decoder.forward"}],
                "fingerprint": "abc",
                "suppressed": False,
            }
        ],
        "errors": [],
        "notes": [],
        "summary": {"certain": 1, "likely": 0, "possible": 0, "suppressed": 0, "in_baseline": 0},
    }


@pytest.mark.parametrize("report", [REPORT, CLEAN], ids=["findings", "clean"])
@pytest.mark.parametrize("statistics", [False, True])
def test_json_is_valid_by_the_published_schema(report, statistics):
    jsonschema.validate(json.loads(written(Format.JSON, report, statistics=statistics)), PUBLISHED)


def test_json_orders_findings_by_place():
    found = json.loads(written(Format.JSON))["findings"]
    assert [finding["rule"] for finding in found] == ["unexplained", "upload", "upload", "host-sync"]


def test_json_names_the_cell_of_a_notebook():
    assert [finding.get("cell") for finding in json.loads(written(Format.JSON))["findings"]] == [None, 4, None, None]


def test_json_paths_are_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subject = CheckReport("0.1.0", None, 1, errors=(SourceError(tmp_path / "sub" / "a.py", None, "odd"),))
    assert json.loads(written(Format.JSON, subject))["errors"][0]["path"] == "sub/a.py"


def test_json_counts_rules_when_asked():
    record = json.loads(written(Format.JSON, statistics=True))
    assert record["statistics"] == {"host-sync": 1, "unexplained": 1, "upload": 1}


def test_concise_is_one_line_a_finding():
    lines = written(Format.CONCISE).splitlines()
    assert "pkg/model.py:41:12: host-sync a device read, `token.item()`, waits in recorded code" in lines
    assert lines[-1] == "3 findings in 2 files (1 capture error, 2 silent), 1 suppressed, 1 file not checked"


def test_github_annotates_the_line():
    lines = written(Format.GITHUB).splitlines()
    assert (
        "::error title=capturelint (host-sync),file=pkg/model.py,line=41,endLine=41,col=12,endColumn=27"
        "::a device read, `token.item()`, waits in recorded code; help: compare on the device"
    ) in lines
    assert "::error title=capturelint,file=broken.py,line=7::not checked: invalid syntax" in lines


def test_github_commands_cannot_be_forged_by_a_name():
    lines = written(Format.GITHUB, CheckReport("0.1.0", None, 1, findings=(ODD,))).splitlines()
    assert lines == [
        "::warning title=capturelint (upload),"
        "file=a%2Cb%3Ac%25\\n%3A%3Aerror%3A%3A\\x1b[2J\\udcff.py,line=1,endLine=2,col=1"
        "::cell 4, line 1: `x\\x00`, odd: 100%25"
    ]


def test_junit_has_a_failed_case_for_each_finding():
    root = ElementTree.fromstring(written(Format.JUNIT))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "3", "1")
    (case,) = root.findall(".//testcase[@name='host-sync']")
    assert (case.get("file"), case.get("line")) == ("pkg/model.py", "41")
    assert case.find("failure").get("message") == FINDING.message


def test_junit_of_a_clean_run_has_a_passed_case():
    root = ElementTree.fromstring(written(Format.JUNIT, CLEAN))
    assert (root.get("tests"), root.get("failures")) == ("1", "0")
    assert root.find(".//testcase/failure") is None


@pytest.mark.parametrize("report", [REPORT, CLEAN], ids=["findings", "clean"])
def test_sarif_is_valid_by_the_official_schema(report):
    jsonschema.validate(json.loads(written(Format.SARIF, report)), SCHEMA)


def test_sarif_carries_rule_level_and_fingerprint():
    (run,) = json.loads(written(Format.SARIF))["runs"]
    (result,) = [r for r in run["results"] if r["ruleId"] == "host-sync"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "host-sync"
    assert (result["level"], result["partialFingerprints"]) == ("error", {"capturelint/v1": "abc"})
    assert len(result["codeFlows"][0]["threadFlows"][0]["locations"]) == 2


def test_sarif_marks_suppressed_findings():
    (run,) = json.loads(written(Format.SARIF))["runs"]
    assert [r["ruleId"] for r in run["results"] if "suppressions" in r] == ["upload"]


def test_sarif_says_that_a_file_was_not_checked():
    (run,) = json.loads(written(Format.SARIF))["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False


def test_sarif_uris_keep_the_bytes_of_a_name():
    (run,) = json.loads(written(Format.SARIF))["runs"]
    uris = {
        r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"] if "locations" in r
    }
    assert "a%2Cb%3Ac%25%0A%3A%3Aerror%3A%3A%1B%5B2J%FF.py" in uris


@pytest.mark.parametrize("format", list(Format))
def test_no_format_lets_a_control_character_through(format):
    assert not [c for c in written(format) if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) <= 0x9F or c == "\udcff"]
