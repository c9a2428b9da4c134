"""Events become findings by the rules' records: what selects, what wins, what a version range does."""

from dataclasses import replace
from pathlib import Path

import pytest

from capturelint.catalog import EVENT_FIELDS, Rule
from capturelint.place import Frame, Place
from capturelint.static.events import Event, Site
from capturelint.static.judge import declares, fields_of, judge, predicate_for, shorten
from capturelint.vocabulary import Confidence, EventKind, Outcome, Phase, Varies

RULE = Rule(
    name="a-rule",
    summary="s",
    event=EventKind.SYNC,
    where=(("how", frozenset({"item", "cpu"})),),
    phase=Phase.RECORDED,
    outcome=Outcome.CAPTURE_ERROR,
    message="`{code}` of {name} varies {varies} in torch {torch} by {how}",
    help=("instead of `{name}`",),
    why="w",
    runtime=frozenset(),
    sources=(),
    since="0.1.0",
)
RULES = {"a-rule": RULE}
FRAME = Frame(Path("m.py"), 9, "step")


def event(line: int = 3, column: int = 5, confidence: Confidence = Confidence.CERTAIN, **more) -> Event:
    site = Site(Place(Path("m.py"), line, column, line, column + 4), more.pop("code", "t.item()"), (FRAME,))
    return Event(EventKind.SYNC, site, more.pop("how", "item"), confidence, **more)


def found(*events: Event, rules=RULES, torch: str | None = None):
    return judge(events, rules, torch)


def test_a_finding_says_what_the_event_is():
    (finding,) = found(event(name="item", varies=Varies.PER_STEP, torch=">=2.6"))
    assert finding.message == "`t.item()` of item varies per-step in torch >=2.6 by item"
    assert finding.help == ("instead of `item`",)
    assert (finding.rule, finding.outcome, finding.confidence) == ("a-rule", Outcome.CAPTURE_ERROR, Confidence.CERTAIN)
    assert finding.trail == (FRAME,)


def test_an_event_without_a_name_is_named_by_its_code():
    assert "of t.item() varies" in found(event())[0].message


@pytest.mark.parametrize(
    "other",
    [
        event(how="numpy"),
        event(phase=Phase.WARM_UP),
        replace(event(), kind=EventKind.BRANCH),
    ],
)
def test_a_rule_speaks_of_what_its_record_selects_only(other):
    assert found(other) == []


def test_a_rule_without_conditions_takes_every_event_of_its_kind():
    assert len(found(event(how="numpy"), rules={"a-rule": replace(RULE, where=())})) == 1


def test_the_surest_of_two_at_one_place_is_kept():
    for order in ((Confidence.LIKELY, Confidence.CERTAIN), (Confidence.CERTAIN, Confidence.LIKELY)):
        (finding,) = found(*(event(confidence=each) for each in order))
        assert finding.confidence is Confidence.CERTAIN


def test_of_two_equally_sure_ones_at_a_place_the_first_speaks():
    (finding,) = found(event(name="first"), event(name="second"))
    assert "of first" in finding.message


def test_a_line_is_reported_once_at_its_first_column():
    for columns in ((5, 20), (20, 5)):
        (finding,) = found(*(event(column=column) for column in columns))
        assert finding.place.column == 5


def test_the_first_column_wins_by_one_too():
    for columns in ((4, 5), (5, 4)):
        (finding,) = found(*(event(column=each) for each in columns))
        assert finding.place.column == 4


def test_a_rule_that_does_not_speak_leaves_the_others_theirs():
    other = replace(RULE, name="another-rule", event=EventKind.BRANCH)
    assert [each.rule for each in found(event(), rules={"another-rule": other, **RULES})] == ["a-rule"]


def test_a_surer_place_on_a_line_beats_an_earlier_one():
    (finding,) = found(event(column=5, confidence=Confidence.LIKELY), event(column=20))
    assert finding.place.column == 20


def test_findings_stand_in_the_order_of_lines():
    assert [finding.place.line for finding in found(event(line=7), event(line=2), event(line=4))] == [2, 4, 7]


def test_code_that_is_compiled_has_its_own_outcome():
    compiled = {"a-rule": replace(RULE, compiled=Outcome.SKIP)}
    assert [finding.outcome for finding in found(event(compiled=True), rules=compiled)] == [Outcome.SKIP]
    assert found(event(compiled=True)) == []


@pytest.mark.parametrize(
    ("code", "shown"),
    [("x" * 48, "x" * 48), ("a" * 34 + "b" * 6 + "c" * 9, "a" * 34 + " ... " + "c" * 9)],
)
def test_long_code_is_cut_in_the_middle(code, shown):
    assert shorten(code) == shown


@pytest.mark.parametrize(
    ("declared", "affected", "expected"),
    [
        (None, "<2.6", False),
        (None, ">=2.6", True),
        (None, ">=2.11", True),
        ("2.5", "<2.6", True),
        ("2.6", "<2.6", False),
        ("2.6", ">=2.6", True),
        (">=2.4", "<2.6", True),
        (">=2.6", "<2.6", False),
        (">=1.13,<2", "<2.0", True),
        (">1.12,<1.14", "==1.13", True),
        ("==2.5.*", "<2.6", True),
        (None, "==2.6", True),
        ("~=2.0", "<2.1", True),
        ("<2", ">=2.0", False),
        (">=2.20", ">=2.30", True),
        ("nonsense", "<2.6", True),
    ],
)
def test_a_limited_effect_counts_where_the_declared_versions_meet_it(declared, affected, expected):
    assert declares(declared, affected) is expected


def test_an_effect_of_versions_that_are_not_declared_is_only_possible():
    assert found(event(torch="<2.6"), torch=">=2.6")[0].confidence is Confidence.POSSIBLE
    assert found(event(torch="<2.6"), torch=">=2.4")[0].confidence is Confidence.CERTAIN


def test_a_predicate_is_found_by_the_rules_name():
    assert predicate_for("a-rule") is None


def test_the_catalogue_knows_the_fields_of_an_event():
    assert fields_of(event()).keys() == EVENT_FIELDS
