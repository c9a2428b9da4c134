import textwrap
from pathlib import Path

from capturelint.catalog import load_rules
from capturelint.finding import Finding
from capturelint.place import Place
from capturelint.static.ignores import apply_ignores
from capturelint.vocabulary import Confidence, Outcome

PATH = Path("m.py")
KNOWN = ("host-sync", "upload")


def finding(line: int, rule: str = "host-sync") -> Finding:
    return Finding(rule, Place(PATH, line), "message", (), Outcome.CAPTURE_ERROR, Confidence.CERTAIN)


def answers(text: str, *lines: int, rule: str = "host-sync") -> tuple[list[int], list[tuple[int, str]]]:
    """Lines suppressed, and complaints as (line, message)."""
    result = apply_ignores([finding(line, rule) for line in lines], PATH, textwrap.dedent(text), known=KNOWN)
    places = [(f, f.place.line if f.place else 0) for f in result]
    return (
        [line for f, line in places if f.suppressed],
        [(line, f.message) for f, line in places if f.rule == "unused-ignore"],
    )


def test_a_comment_on_the_line_suppresses():
    assert answers("x = 1\ny = t.item()  # capturelint: ignore[host-sync] outside the loop\n", 2) == ([2], [])


def test_a_comment_alone_above_suppresses():
    assert answers("# capturelint: ignore[host-sync] outside the loop\ny = t.item()\nz = t.item()\n", 2, 3) == ([2], [])


def test_a_comment_above_a_decorator_covers_the_function_line():
    text = """\
    t.item()
    # capturelint: ignore[host-sync] called once
    @first
    @second(
        1,
    )
    def f(x=t.item()):
        return t.item()
    """
    assert answers(text, 1, 7, 8) == ([7], [])


def test_a_comment_inside_a_statement_covers_its_lines():
    text = """\
    y = call(
        a,
        t.item(),  # capturelint: ignore[host-sync] end of sequence
        u.item(),
    )
    z = t.item()
    """
    assert answers(text, 3, 4, 6) == ([3, 4], [])


def test_a_comment_above_a_loop_covers_its_head_only():
    text = "# capturelint: ignore[host-sync] head\nwhile t.item():\n    t.item()\n"
    assert answers(text, 2, 3) == ([2], [])


def test_a_comment_for_the_whole_file_stands_in_the_first_comments():
    text = "#!/usr/bin/env python\n# capturelint: ignore-file[host-sync] eager only\n\nt.item()\nt.item()\n"
    assert answers(text, 4, 5) == ([4, 5], [])


def test_a_comment_for_the_whole_file_below_code_does_nothing():
    suppressed, complaints = answers("import torch\n# capturelint: ignore-file[host-sync] eager only\nt.item()\n", 3)
    assert (suppressed, complaints) == ([], [(2, "a suppression for the whole file stands below code")])


def test_several_rules_share_a_comment():
    text = "t.item()  # capturelint: ignore[host-sync, upload] once\n"
    assert answers(text, 1) == ([1], [(1, "no `upload` to suppress here")])


def test_another_rule_is_not_suppressed():
    text = "t.item()  # capturelint: ignore[upload] once\n"
    assert answers(text, 1) == ([], [(1, "no `upload` to suppress here")])


def test_a_reason_is_required():
    text = "t.item()  # capturelint: ignore[host-sync]\n"
    assert answers(text, 1) == ([], [(1, "a suppression gives no reason, so it suppresses nothing")])


def test_another_tools_comment_is_no_reason():
    text = "t.item()  # capturelint: ignore[host-sync]  # noqa: E501\n"
    assert answers(text, 1)[1] == [(1, "a suppression gives no reason, so it suppresses nothing")]


def test_an_issue_number_is_a_reason():
    assert answers("t.item()  # capturelint: ignore[host-sync] #123\n", 1) == ([1], [])


def test_a_comment_may_follow_another_tools():
    assert answers("t.item()  # noqa: E501  # capturelint: ignore[host-sync] once\n", 1) == ([1], [])


def test_an_unknown_rule_is_named_with_the_nearest():
    result = apply_ignores([], PATH, "t.item()  # capturelint: ignore[host-synk] once\n", known=KNOWN)
    assert [(f.message, f.help) for f in result] == [
        ("a suppression names the unknown rule `host-synk`", ("did you mean 'host-sync'?",))
    ]


def test_no_rule_at_all_is_a_fault():
    assert answers("t.item()  # capturelint: ignore once\n", 1)[1] == [(1, "a suppression names no rule")]


def test_a_misspelt_word_is_a_fault():
    assert answers("t.item()  # capturelint: ingore[host-sync] once\n", 1) == (
        [],
        [(1, "`capturelint: ingore` is no suppression")],
    )


def test_prose_about_the_tool_is_no_suppression():
    assert answers("# capturelint: see the documentation\nt.item()\n", 2) == ([], [])


def test_a_string_is_no_comment():
    assert answers('s = "# capturelint: ignore[host-sync] no"\nt.item()\n', 2) == ([], [])


def test_text_that_cannot_be_parsed_survives():
    assert answers("# capturelint: ignore[host-sync] why\nx = (\n", 2)[0] == []


def test_a_complaint_marks_the_comment():
    (complaint,) = apply_ignores([], PATH, "t  # noqa # capturelint: ignore[upload] once  # more\n", known=KNOWN)
    place = complaint.place
    assert place is not None
    assert (place.column, place.end_column) == (11, 45)


def test_the_catalogue_says_which_rules_exist():
    for name in load_rules():
        used = apply_ignores([finding(1, name)], PATH, f"t  # capturelint: ignore[{name}] why\n")
        assert [f.suppressed for f in used] == [True]
