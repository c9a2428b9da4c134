"""Everything that a user can meet is documented: commands, options, exit codes, rules, JSON fields, configuration keys.

Reference pages are built from the code, so what has to be held is that the code says something of itself, and that the
pages written by hand leave nothing out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from report_pages import EMULATED, MEASURED
from typer.testing import CliRunner

from capturelint.catalog import BUILT_IN, load_rules
from capturelint.cli import COMMANDS, app
from capturelint.config import KEYS
from capturelint.report.page import pages
from capturelint.report.verify_json import render_verify_json
from capturelint.vocabulary import Confidence, Outcome, Severity, Verdict

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SCHEMAS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (DOCS / "schemas").glob("*.json")}
TARGET = str(ROOT / "fixtures/targets/int_position.py")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its full name."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


ALL = dict(commands(typer.main.get_command(app)))


def run(*words: str) -> str:
    return COLOUR.sub("", CliRunner().invoke(app, list(words), catch_exceptions=False).stdout)


PARTS = ("static", "runtime", "emulator", "compiler", "logs", "planning", "report")


@pytest.mark.parametrize("part", PARTS)
def test_every_module_is_on_the_map(part):
    table = [line for line in (DOCS / "architecture.md").read_text().splitlines() if line.startswith("| `")]
    on_map = {name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    modules = {path.stem for path in (ROOT / "capturelint" / part).glob("*.py")} - {"__init__"}
    assert modules <= on_map


@pytest.mark.parametrize("name", ALL)
def test_a_command_says_what_it_does_and_shows_an_example(name):
    command = ALL[name]
    assert command.help
    assert f"Example: capturelint {name}" in f"{command.help}\n{command.epilog}"


@pytest.mark.parametrize("name", ALL)
def test_every_option_and_argument_says_what_it_is_for(name):
    assert [parameter.name for parameter in ALL[name].params if not parameter.hidden and not parameter.help] == []


def test_every_command_has_its_exit_codes_in_the_reference():
    section = (DOCS / "reports.md").read_text().partition("## Exit codes")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"`{name}`" for name in COMMANDS]
    assert all(zero and two for _, zero, _, two in rows)


def test_every_key_of_the_configuration_is_in_its_page():
    page = (DOCS / "configuration.md").read_text()
    assert [key for key in KEYS if not re.search(rf"^(\[tool\.capturelint\.)?{key}\b", page, re.MULTILINE)] == []


def test_every_rule_has_a_page():
    assert {page.name for page in pages()} == load_rules().keys() | BUILT_IN
    assert [page.name for page in pages() if not (page.summary and page.why)] == []


def test_the_words_of_a_report_are_explained():
    text = "".join(
        (DOCS / name).read_text() for name in ("vocabulary.md", "reports.md", "ci.md", "runtime.md", "analyser.md")
    )
    words = [*Outcome, *Verdict, *Severity]
    missing = [word.value for word in words if word is not Outcome.NONE and f"`{word.value}`" not in text]
    assert missing == []
    assert [level.word for level in Confidence if f"| {level.word} |" not in text] == []


def fields(schema: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{at}.{name}", field
        yield from fields(field, f"{at}.{name}")
    for inner in (schema.get("items"), schema.get("additionalProperties"), *schema.get("$defs", {}).values()):
        if isinstance(inner, dict):
            yield from fields(inner, at)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_field_of_a_schema_is_described(name):
    assert [at for at, field in fields(SCHEMAS[name]) if not field.get("description") and "$ref" not in field] == []


OUTPUTS = {
    "check": ("check", TARGET, "--statistics"),
    "facts": ("facts", TARGET),
    "logs": ("logs", *map(str, sorted((ROOT / "fixtures/logs").glob("*.log"))), "--fail-on", "all"),
    "explain": ("explain",),
    "doctor": ("doctor",),
}


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that allows no field that it does not describe."""
    closed = {key: strict(value) if isinstance(value, dict) else value for key, value in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict):
        closed["properties"] = {name: strict(field) for name, field in schema["properties"].items()}
        if "$ref" not in schema and "allOf" not in schema:
            closed.setdefault("additionalProperties", False)
    return closed


@pytest.mark.parametrize("name", OUTPUTS)
def test_json_has_no_field_that_its_schema_does_not_describe(name):
    written = json.loads(run(*OUTPUTS[name], "--format", "json"))
    jsonschema.validate(written, strict(SCHEMAS[name]))


@pytest.mark.parametrize("report", [MEASURED, EMULATED], ids=["on a GPU", "emulated"])
def test_the_json_of_verify_has_no_field_that_its_schema_does_not_describe(report):
    jsonschema.validate(json.loads(render_verify_json(report)), strict(SCHEMAS["verify"]))


def test_one_rule_explained_has_the_same_fields():
    jsonschema.validate(json.loads(run("explain", "host-sync", "--format", "json")), strict(SCHEMAS["explain"]))


@pytest.mark.parametrize("extra", [(), ("--memory", "2GiB", "--bytes-per-graph", "36MB", "--engine", "vllm==0.33")])
def test_a_plan_has_the_fields_of_its_schema(tmp_path, extra):
    (tmp_path / "batches.csv").write_text("batch_size,count\n1,40\n3,20\n9,3\n")
    written = json.loads(run("plan", str(tmp_path / "batches.csv"), "--format", "json", *extra))
    jsonschema.validate(written, strict(SCHEMAS["plan"]))


def test_every_command_with_json_has_a_schema():
    with_json = {
        name.split()[0]
        for name, command in ALL.items()
        for parameter in command.params
        if "--format" in parameter.opts
        and "json" in [str(getattr(c, "value", c)) for c in getattr(parameter.type, "choices", ())]
    }
    assert with_json == SCHEMAS.keys()


def test_completion_is_offered_for_the_common_shells():
    for shell in ("bash", "zsh", "fish"):
        result = CliRunner().invoke(app, [], prog_name="capturelint", env={"_CAPTURELINT_COMPLETE": f"source_{shell}"})
        assert "capturelint" in result.stdout
        assert "_CAPTURELINT_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("capturelint ver", {"verify"}), ("capturelint check --diff", {"--diff", "--diff-base"}),
     ("capturelint verify --device ", {"cuda", "emulated"}), ("capturelint explain --format j", {"json"})],
)  # fmt: skip
def test_commands_options_and_choices_are_completed(typed, expected):
    words = typed.split(" ")
    environment = {"_CAPTURELINT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(app, [], prog_name="capturelint", env=environment)
    assert set(result.stdout.split()) == expected
