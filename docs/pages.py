"""Pages that are built from the code: rules, the command line, the JSON schemas, the catalogue of operations.

A hook of mkdocs; the pages exist only in the build, so they cannot be out of date in the repository.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from capturelint.catalog import Case, Operation, load_operations
from capturelint.cli import app
from capturelint.report.page import CONSEQUENCES, page_markdown, pages, sentence

SCHEMAS = Path(__file__).parent / "schemas"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every rule into the navigation."""
    rules = ["rules/index.md", *(f"rules/{page.name}.md" for page in pages())]
    for section in config.nav or []:
        for entry in section.get("Reference", ()) if isinstance(section, dict) else ():
            if isinstance(entry, dict) and "Rules" in entry:
                entry["Rules"] = rules
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the built pages to those that are written."""
    built = {
        "rules/index.md": rule_list(),
        "cli.md": command_line(),
        "json.md": json_fields(),
        "operations.md": operations(),
        **{f"rules/{page.name}.md": page_markdown(page) for page in pages()},
    }
    for name, content in built.items():
        files.append(File.generated(config, name, content=content))
    return files


def rule_list() -> str:
    """Every rule with its outcome and summary."""
    rows = [
        f"| [{page.name}]({page.name}.md) | `{page.outcome.value}` | {sentence(page.summary)} |" for page in pages()
    ]
    meanings = [f"- `{outcome.value}`: {text}" for outcome, text in CONSEQUENCES.items()]
    return "\n".join(["# Rules", "", "| rule | outcome | what it finds |", "|---|---|---|", *rows, "", *meanings, ""])


def command_line() -> str:
    """Every command with its arguments and options, as the program itself knows them."""
    lines = ["# Command line", "", "Exit codes: 0 nothing found, 1 found, 2 input, usage or machine at fault.", ""]
    for name, command in commands(typer.main.get_command(app)):
        lines += [f"## capturelint {name}", "", (command.help or "").replace("\b", "").strip(), ""]
        if command.epilog:
            lines += [command.epilog, ""]
        lines += ["| | | default |", "|---|---|---|", *parameter_rows(command.params), ""]
    return "\n".join(lines)


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its full name; a group of commands is its members."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def parameter_rows(parameters: list[Any]) -> Iterator[str]:
    """A row for each argument and option."""
    for parameter in parameters:
        if getattr(parameter, "hidden", False):
            continue
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        if parameter.param_type_name == "argument":
            names = f"`{str(parameter.name).upper()}`"
        choices = getattr(parameter.type, "choices", None)
        text = " ".join((parameter.help or "").split())
        if choices:
            words = [f"`{getattr(choice, 'value', choice)}`" for choice in choices]
            text += f" One of {', '.join(words)}."
        yield f"| {names} | {cell(text)} | {cell(default_of(parameter))} |"


def default_of(parameter: Any) -> str:
    """The default as it would be typed; nothing for a flag that is off and for what has none."""
    default = getattr(parameter.default, "value", parameter.default)
    return "" if default in (None, False, True, (), []) or callable(default) else f"`{default}`"


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|")


def json_fields() -> str:
    """Every field of every JSON format, from the schemas that the tests validate."""
    lines = [
        "# JSON",
        "",
        "What `--format json` writes. The schemas are published as files, and tests validate the output by them.",
        "Fields are added, never changed, within one value of `schema`; pass over those that you do not know.",
        "",
    ]
    for path in sorted(SCHEMAS.glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        lines += [f"## {path.stem}", "", f"{schema['description']} [Schema](schemas/{path.name}).", ""]
        lines += ["| field | type | |", "|---|---|---|"]
        for name, field, required in fields(schema, schema.get("$defs", {})):
            optional = "" if required else " Not always there."
            lines.append(f"| `{name}` | {kind(field)} | {cell(field.get('description', ''))}{optional} |")
        lines.append("")
    return "\n".join(lines)


def fields(
    schema: Mapping[str, Any], shared: Mapping[str, Any], at: str = ""
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Every field below a schema: its path, what it is, and whether it is always there."""
    for name, given in schema.get("properties", {}).items():
        field = resolved(given, shared)
        path = f"{at}{name}"
        yield path, field, name in schema.get("required", [])
        yield from fields(field, shared, f"{path}.")
        items, values = field.get("items"), field.get("additionalProperties")
        if isinstance(items, dict):
            yield from fields(resolved(items, shared), shared, f"{path}[].")
        if isinstance(values, dict):
            yield from fields(resolved(values, shared), shared, f"{path}.*.")


def resolved(schema: Mapping[str, Any], shared: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with what it refers to, alone or as the one alternative to null."""
    for option in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if "$ref" in option:
            return {**shared[option["$ref"].rpartition("/")[2]], **schema}
    return schema


def kind(field: Mapping[str, Any]) -> str:
    """A type in a word or two."""
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    found = field.get("type", "object")
    return " or ".join(found) if isinstance(found, list) else str(found)


def operations() -> str:
    """What each torch operation does to a capture, as a table that can be filtered."""
    table = load_operations()
    lines = [
        "# Operations",
        "",
        "What an operation does to a capture, as `check` knows it. The counts are samples that were captured and",
        "replayed on an H200, torch 2.11: how many were refused or replayed with other values. A condition names",
        "parameters: `given` or `absent`, on the `device` or on the `host`. Add your own in [YAML](own-rules.md).",
        "",
    ]
    for title, rows in (("Operations", table.operations), ("Spellings in Python", table.constructs)):
        lines += [f"## {title}", "", '<div class="filtered" markdown>', ""]
        lines += ["| name | effect | torch | refused | source |", "|---|---|---|---|---|"]
        lines += [operation_row(operation) for _, operation in sorted(rows.items())]
        lines += ["", "</div>", ""]
    return "\n".join(lines)


def operation_row(operation: Operation) -> str:
    """One operation with its cases."""
    cases = "; ".join(effect_of(case) for case in operation.cases)
    versions = ", ".join(dict.fromkeys(case.torch or "all" for case in operation.cases))
    measured = f"{operation.refused} of {operation.samples}" if operation.samples else ""
    return f"| `{cell(operation.name)}` | {cases} | {cell(versions)} | {measured} | {operation.source} |"


def effect_of(case: Case) -> str:
    """``read if absent size``."""
    said = [
        f"{word} {', '.join(sorted(names))}"
        for word in ("given", "absent", "device", "host")
        if (names := getattr(case, word))
    ]
    sure = ", not always" if case.possible else ""
    return f"{case.effect.value}{' if ' + ' and '.join(said) if said else ''}{sure}"
