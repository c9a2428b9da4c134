"""The cure of every rule as a small diff, out of the cases that the rule is tested by."""

import pytest

from capturelint.catalog import load_rules
from capturelint.report.cure import DiffLine, example, from_patch, twins
from capturelint.report.page import MARKER, page


@pytest.mark.parametrize("rule", sorted(load_rules()))
def test_every_rule_shows_a_small_repair(rule):
    cure = example(rule)
    assert cure is not None
    kinds = {line.kind for line in cure.lines}
    assert "+" in kinds
    assert not [line.text for line in cure.lines if MARKER.search(line.text)]


@pytest.mark.parametrize("rule", sorted(load_rules()))
def test_a_cure_leads_from_a_marked_case_to_a_silent_one(rule):
    pair = twins(rule, page(rule).blocks)
    assert pair is not None
    assert [bool(MARKER.search(block.code)) for block in pair] == [True, False]


def test_what_no_fixture_is_about_has_no_cure():
    assert example("graph-break") is None


def test_a_patch_of_the_users_file_is_shown_without_its_head():
    patch = "--- m.py\n+++ m.py\n@@ -1,2 +1,2 @@\n x = 1\n-y = 2\n+y = 3\n"
    assert from_patch(patch, "a rewriting").lines == (
        DiffLine(" ", "x = 1"),
        DiffLine("-", "y = 2"),
        DiffLine("+", "y = 3"),
    )
