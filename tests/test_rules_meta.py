"""What holds for every rule, whatever it says: names, texts, sources, cases, and words that something really emits."""

import re
from pathlib import Path

import pytest
from test_rules_fixtures import CASES, FIXTURES

import capturelint.static
from capturelint.catalog import EVENT_FIELDS, TABLES, Rule, data_directory, load_operations, load_rules
from capturelint.report.page import page, page_text
from capturelint.vocabulary import Effect, ObservationKind

RULES = tuple(load_rules().values())
CODE = "twenty_letters_of_it"
MAX_MESSAGE = 90
STATIC = "".join(path.read_text() for path in sorted(Path(capturelint.static.__file__).parent.glob("*.py")))
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def test_names_are_those_of_the_files():
    files = {path.stem for path in data_directory("rules").glob("*.yaml") if path.name not in TABLES}
    assert files == {rule.name for rule in RULES}


def test_names_are_kebab_case():
    assert [rule.name for rule in RULES if not re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)] == []


def test_every_rule_has_a_fixture_and_every_fixture_a_rule():
    assert {path.stem for path in FIXTURES.glob("*.md")} == {rule.name for rule in RULES}


@each_rule
def test_the_message_is_one_short_line_about_the_users_code(rule: Rule):
    message = rule.message.format_map(dict.fromkeys(EVENT_FIELDS, CODE) | {"torch": "<2.6"})
    assert f"`{CODE}`" in message
    assert "\n" not in message
    assert not message.endswith((".", "!"))
    assert len(message) <= MAX_MESSAGE


@each_rule
def test_every_cure_is_one_line(rule: Rule):
    assert rule.help
    assert [text for text in rule.help if "\n" in text or text.endswith(".")] == []


@each_rule
def test_why_is_whole_sentences(rule: Rule):
    assert re.match(r"[A-Z`]", rule.why)
    assert rule.why.endswith(".")


@each_rule
def test_a_rule_has_a_marked_and_an_unmarked_block(rule: Rule):
    own = [case for case in CASES if case.page == rule.name]
    assert any(case.block.marked(rule.name) or case.block.marked(rule.name, "missed") for case in own)
    assert any(not case.marks("error") and not case.marks("missed") for case in own)


@each_rule
def test_a_rule_is_seen_to_speak(rule: Rule):
    assert any(case.block.marked(rule.name) for case in CASES)


@each_rule
def test_observations_that_confirm_a_rule_exist(rule: Rule):
    assert all(isinstance(kind, ObservationKind) for kind in rule.runtime)


@each_rule
def test_sources_are_addresses_or_measurements(rule: Rule):
    assert rule.sources
    assert [text for text in rule.sources if not re.match(r"https://|measured on ", text)] == []


@each_rule
def test_something_emits_what_a_rule_selects(rule: Rule):
    assert f"EventKind.{rule.event.name}" in STATIC
    words = {word for name, wanted in rule.where if name == "how" for word in wanted}
    assert {word for word in words if not emits(word)} == set()


def emits(word: str) -> bool:
    """Whether ``how`` can be that word: in a string, put together as ``builtin-`` and a name, or an effect's."""
    prefix, _, rest = word.partition("-")
    composed = f'f"{prefix}-{{' in STATIC and f'"{rest}"' in STATIC
    return f'"{word}"' in STATIC or composed or word in {effect.value for effect in Effect}


@each_rule
def test_the_page_of_a_rule_shows_bad_and_good(rule: Rule):
    shown = page_text(page(rule.name))
    assert "good: " in shown
    assert "bad: " in shown or "known to be missed: " in shown


def test_every_operation_has_effects_and_a_source():
    catalog = load_operations()
    rows = [*catalog.operations.values(), *catalog.constructs.values()]
    assert all(isinstance(case.effect, Effect) for row in rows for case in row.cases)
    assert [row.name for row in rows if not row.cases or not row.source] == []


def test_marks_name_rules():
    named = {
        rule for case in CASES for kind in ("error", "missed") for rules in case.marks(kind).values() for rule in rules
    }
    assert named <= load_rules().keys()
