"""Pages that are built from the code: one a rule, the list of rules, the command line, the catalogue of operations.

A hook of mkdocs; the pages exist only in the build, so they cannot be out of date in the repository.
"""

from __future__ import annotations

from collections.abc import Iterator

import typer
import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from capturelint.catalog import data_directory
from capturelint.cli import app
from capturelint.report.page import CONSEQUENCES, page_markdown, pages, sentence


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the built pages to those that are written."""
    built = {
        "rules/index.md": rule_list(),
        "cli.md": command_line(),
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
    group = typer.main.get_command(app)
    lines = ["# Command line", "", "Exit codes: 0 nothing found, 1 found, 2 input, usage or machine at fault.", ""]
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        lines += [f"## capturelint {name}", "", (command.help or "").replace("\b", "").strip(), ""]
        if command.epilog:
            lines += [command.epilog, ""]
        lines += ["| | |", "|---|---|", *parameter_rows(command.params), ""]
    return "\n".join(lines)


def parameter_rows(parameters: list[object]) -> Iterator[str]:
    """A row for each argument and option."""
    for parameter in parameters:
        names = ", ".join(
            f"`{name}`" for name in getattr(parameter, "opts", []) + getattr(parameter, "secondary_opts", [])
        )
        if getattr(parameter, "param_type_name", "") == "argument":
            names = f"`{str(getattr(parameter, 'name', '')).upper()}`"
        text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
        yield f"| {names} | {text} |"


def operations() -> str:
    """What each torch operation does to a capture, as a table that the search covers."""
    table = yaml.safe_load((data_directory("rules") / "operations.yaml").read_text(encoding="utf-8"))
    lines = ["# Operations", "", "What an operation does to a capture. `samples` were measured on an H200.", ""]
    lines += ["| operation | effect | refused / samples | torch | source |", "|---|---|---|---|---|"]
    for name, record in table.get("operations", {}).items():
        effects = record.get("effect") or ", ".join(sorted({case["effect"] for case in record.get("cases", [])}))
        measured = f"{record['refused']} / {record['samples']}" if "samples" in record else ""
        lines.append(f"| `{name}` | {effects} | {measured} | {record.get('torch', '')} | {record.get('source', '')} |")
    return "\n".join([*lines, ""])
