from dataclasses import replace
from pathlib import Path

import pytest

from capturelint.errors import SourceError
from capturelint.finding import Evidence, Finding
from capturelint.place import Frame, Place
from capturelint.report import CheckReport, EntryRecord, Format, render
from capturelint.report.frame import frame
from capturelint.vocabulary import Confidence, Outcome

SOURCE = (
    "def step(state, token):",
    "    token = state.model(token)",
    "    if token.item() == 2:",
    "        return None",
)
ENTRY = EntryRecord(Path("model.py"), 1, "step", "plain protocol")
FINDING = Finding(
    rule="host-sync",
    place=Place(Path("model.py"), 3, 8, 3, 20),
    message="a device read, `token.item()`, waits in recorded code",
    help=("compare on the device",),
    outcome=Outcome.CAPTURE_ERROR,
    confidence=Confidence.CERTAIN,
    trail=(Frame(Path("model.py"), 1, "step"), Frame(Path("model.py"), 2, "Decoder.forward")),
)


def report(*findings: Finding, **fields: object) -> CheckReport:
    return CheckReport(version="0.1.0", torch=None, files=2, entries=(ENTRY,), findings=findings, **fields)


def text(subject: CheckReport, **options: object) -> list[str]:
    return render(subject, Format.TEXT, read=lambda path, cell: SOURCE, **options).splitlines()


def test_a_finding_is_drawn_with_its_frame_trail_and_cure():
    lines = text(report(FINDING))
    assert lines[:8] == [
        "model.py:3:8 host-sync a device read, `token.item()`, waits in recorded code",
        "  |",
        "2 |     token = state.model(token)",
        "3 |     if token.item() == 2:",
        "  |        ^^^^^^^^^^^^",
        "  |",
        "  = via step (model.py:1) -> Decoder.forward (model.py:2)",
        lines[7],
    ]
    assert lines[7].startswith("  = capture error: ")
    assert lines[8:] == [
        "  = help: compare on the device",
        "",
        "1 entry: step (model.py:1, plain protocol)",
        "1 finding in 1 file (1 capture error)",
    ]


def test_a_pipe_gets_no_escape_codes():
    assert "\x1b" not in "\n".join(text(report(FINDING)))


def test_a_terminal_gets_colour():
    assert "\x1b[1;31mhost-sync" in "\n".join(text(report(FINDING), colour=True))


def test_an_inferred_finding_says_so():
    inferred = Finding("upload", None, "m", (), Outcome.SILENT_WRONG, Confidence.LIKELY)
    assert any(line.startswith("  = likely silently wrong: ") for line in text(report(inferred)))


def test_another_outcome_than_the_rules_own_is_said_in_its_own_words():
    compiled = replace(FINDING, outcome=Outcome.SKIP)
    assert "  = skip: the step runs without a graph" in text(report(compiled))


def test_evidence_is_shown():
    seen = Finding("upload", None, "m", (), Outcome.SLOW, Confidence.PROVEN, evidence=Evidence("3 differs from 4"))
    assert "  = seen 3 differs from 4" in text(report(seen))


def test_no_entry_at_all_is_said_aloud():
    lines = text(CheckReport(version="0.1.0", torch=None, files=3))
    assert lines == [
        "no entry found in 3 files, so no recorded code was checked; name one with --entry MODULE:NAME",
        "no findings in 3 files",
    ]


def test_many_entries_are_counted_by_reason():
    entries = tuple(EntryRecord(Path("m.py"), n, f"decode_{n}", "by name") for n in range(4))
    lines = text(CheckReport(version="0.1.0", torch=None, files=1, entries=(*entries, ENTRY)))
    assert lines[0] == "5 entries: 4 by name, 1 plain protocol"


def test_quiet_is_silent_when_clean():
    assert text(report(), quiet=True) == []


def test_the_count_names_what_is_not_shown():
    suppressed = Finding("upload", None, "m", (), Outcome.SLOW, Confidence.CERTAIN, suppressed=True)
    lines = text(report(suppressed, in_baseline=2, errors=(SourceError(Path("b.py"), 3, "invalid syntax"),)))
    assert lines[-1] == "no findings in 2 files, 1 suppressed, 2 in the baseline, 1 file not checked"


def test_statistics_count_findings_by_rule():
    upload = Finding("upload", None, "m", (), Outcome.SLOW, Confidence.CERTAIN)
    lines = text(report(FINDING, upload, upload), statistics=True)
    assert [line.split()[:2] for line in lines[:2]] == [["2", "upload"], ["1", "host-sync"]]


def test_a_note_is_wrapped_on_a_terminal_only():
    long = Finding("upload", None, "m", ("word " * 30,), Outcome.SLOW, Confidence.CERTAIN)
    assert max(map(len, text(report(long), width=60))) <= 66
    assert max(map(len, text(report(long)))) > 120


def test_control_characters_of_names_are_escaped():
    odd = Finding(
        "upload",
        Place(Path("a\x1b[2J\n.py"), 1),
        "`x\x07`",
        (),
        Outcome.SLOW,
        Confidence.CERTAIN,
        (Frame(Path("\r"), 1, "\x9b"),),
    )
    output = "\n".join(text(report(odd)))
    assert not any(ord(c) < 32 and c != "\n" for c in output)
    assert "\x9b" not in output
    assert "a\\x1b[2J\\n.py:1:1" in output


def rows(place: Place, *lines: str, width: int | None = None) -> list[str]:
    return [row.text for row in frame(place, lines, width)]


def test_tabs_and_wide_characters_keep_carets_in_place():
    drawn, carets = rows(Place(Path("m"), 1, 9, 1, 10), "\tx\t='中';t")
    assert (drawn, carets) == ("    x    ='中';t", " " * 15 + "^")


def test_every_line_of_a_statement_is_underlined():
    place = Place(Path("m"), 1, 5, 3, 2)
    assert rows(place, "x = call(", "    a,", ")") == ["x = call(", "    ^^^^^", "    a,", "    ^^", ")", "^"]


def test_indentation_is_not_underlined():
    assert rows(Place(Path("m"), 1, 1, 1, 6), "    x") == ["    x", "    ^"]


@pytest.mark.parametrize(("lines", "last"), [(4, "^"), (5, "...")])
def test_a_statement_of_more_than_four_lines_is_cut(lines, last):
    assert rows(Place(Path("m"), 1, 1, lines, 2), *("x",) * lines)[-1] == last


def test_the_line_before_is_shown_and_the_second_one_has_one():
    assert rows(Place(Path("m"), 2, 1, 2, 2), "def f():", "x") == ["def f():", "x", "^"]


def test_a_long_line_is_cropped_around_the_carets():
    line = "a" * 500 + "token.item()" + "b" * 500
    drawn, carets = rows(Place(Path("m"), 1, 501, 1, 513), line, width=80)
    assert len(drawn) <= 80
    assert drawn[carets.index("^") : carets.rindex("^") + 1] == "token.item()"
    assert (drawn[0], drawn[-1]) == ("…", "…")


@pytest.mark.parametrize(("begin", "ends"), [(1, "t…"), (501, "…t")])
def test_a_cropped_line_says_on_which_side(begin, ends):
    line = "t" * 512
    drawn, _ = rows(Place(Path("m"), 1, begin, 1, begin + 5), line, width=80)
    assert (drawn[0], drawn[-1]) == tuple(ends)


def test_a_line_that_is_gone_has_no_frame():
    assert rows(Place(Path("m"), 7), "x") == []
