"""``capturelint facts``: what the analyser sees, the rule writer's microscope."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path

import typer

from capturelint.catalog import add_rules
from capturelint.cli.check import bindings, names, to_name
from capturelint.cli.terminal import width_of
from capturelint.config import declared_torch, load_config
from capturelint.escape import visible
from capturelint.report import EntryRecord
from capturelint.report.model import counted, relative
from capturelint.report.wrapping import rows
from capturelint.static.check import Checked, Options, check
from capturelint.static.events import Event
from capturelint.static.facts import CallFact
from capturelint.static.index import FunctionDef
from capturelint.static.roots import Outcome


class FactsFormat(Enum):
    """How facts are written."""

    TEXT = "text"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("facts", epilog="Example: capturelint facts model.py")(facts)


def facts(
    paths: list[Path] = typer.Argument(..., metavar="PATHS...", help="Files and directories to look at."),
    entry: list[str] = typer.Option([], "--entry", metavar="MODULE:NAME", help="Recorded code starts here."),
    bind: list[str] = typer.Option([], "--bind", metavar="PARAM=MODULE:CLASS", help="Type of an entry's parameter."),
    follow: list[str] = typer.Option([], "--follow", metavar="PACKAGE", help="Also analyse this package's sources."),
    format: FactsFormat = typer.Option(FactsFormat.TEXT, "--format", help="How to write the facts."),
) -> None:
    """Show what the analyser sees: entries, values, events.

    For each entry the functions that it reaches, the homes of its tensors, the values at each call, and the events that
    rules judge; then the operations that the catalogue does not list.

    Exit codes: 0 facts were printed, 2 usage or a file that cannot be read.
    """
    settings = load_config(paths[0])
    add_rules(settings.rules)
    options = Options(
        entry=tuple(entry) or settings.entry,
        configured=not entry,
        bind=bindings(settings, bind),
        follow=names(follow) or settings.follow,
        torch=settings.torch or declared_torch(paths[0]),
        exclude=settings.exclude,
        include=settings.include,
        root=settings.root,
        watches=True,
    )
    checked = check(paths, options)
    record = [entry_facts(entry, outcome) for entry, outcome in zip(checked.entries, checked.outcomes, strict=True)]
    if format is FactsFormat.JSON:
        typer.echo(json.dumps({"schema": 1, "entries": record, "unlisted": sorted(checked.unlisted)}, indent=1))
    else:
        width = width_of(sys.stdout)
        said = [*checked.notes, *(to_name(paths, options) if not record else ())]
        typer.echo("\n".join(row for line in text_lines(record, checked, said) for row in rows(line, width, 8)))
    for error in checked.errors:
        typer.echo(f"error: {visible(str(error))}", err=True)
    raise typer.Exit(2 if checked.errors else 0)


def entry_facts(entry: EntryRecord, outcome: Outcome) -> dict[str, object]:
    """Everything about one entry."""
    return {
        "path": relative(entry.path),
        "line": entry.line,
        "name": entry.name,
        "why": entry.why,
        "arguments": dict(outcome.arguments),
        "reached": [place_of(function) for function in outcome.reached],
        "homes": [{"owner": slot.owner, "name": slot.name, "value": slot.value} for slot in outcome.slots],
        "calls": [call_facts(call) for call in sorted(outcome.calls, key=lambda c: (c.place, c.callee))],
        "events": [event_facts(event) for event in sorted(outcome.events, key=lambda e: e.site.place)],
        "complete": not outcome.exhausted,
    }


def call_facts(call: CallFact) -> dict[str, object]:
    """One call in recorded code, with its values."""
    return {
        "path": relative(call.place.path),
        "line": call.place.line,
        "code": call.code,
        "callee": call.callee,
        "arguments": list(call.arguments),
        "result": call.result,
    }


def event_facts(event: Event) -> dict[str, object]:
    """One event."""
    place = event.site.place
    return {
        "path": relative(place.path),
        "line": place.line,
        "kind": event.kind.value,
        "how": event.how,
        "confidence": event.confidence.word,
        "code": event.site.code,
    }


def place_of(function: FunctionDef) -> str:
    """``Decoder.forward (model.py:80)``."""
    return f"{function.qualified_name} ({relative(function.module.path)}:{function.node.lineno})"


def text_lines(record: list[dict[str, object]], checked: Checked, said: list[str]) -> list[str]:
    """The facts as indented text, and in front of the count what is said of the run."""
    lines: list[str] = []
    for entry in record:
        lines.append(f"{entry['path']}:{entry['line']}: {entry['name']} ({entry['why']})")
        lines += section("arguments", [f"{name}: {value}" for name, value in items(entry["arguments"])])
        lines += section("reached", [str(name) for name in members(entry["reached"])])
        lines += section("homes", [f"{h['owner']}.{h['name']}: {h['value']}" for h in records(entry["homes"])])
        lines += section("calls", [call_line(call) for call in records(entry["calls"])])
        lines += section(
            "events",
            [
                f"{e['path']}:{e['line']} {e['kind']} ({e['how']}, {e['confidence']}) `{e['code']}`"
                for e in records(entry["events"])
            ],
        )
    lines += section("operations that the catalogue does not list", sorted(checked.unlisted), indent="")
    lines += said
    num_events = sum(len(records(entry["events"])) for entry in record)
    totals = counted(len(record), "entry"), counted(num_events, "event"), counted(checked.files, "file")
    lines.append("{}, {} in {}".format(*totals))
    return lines


def call_line(call: dict[str, object]) -> str:
    """``model.py:41 `f(x)` Attention.forward(device tensor, rank 2, ...) -> ...``."""
    arguments = "; ".join(map(str, members(call["arguments"])))
    return f"{call['path']}:{call['line']} `{call['code']}` {call['callee']}({arguments}) -> {call['result']}"


def section(title: str, lines: list[str], indent: str = "  ") -> list[str]:
    """A titled list, or nothing."""
    return [f"{indent}{title}", *(f"{indent}  {line}" for line in lines)] if lines else []


def items(value: object) -> list[tuple[str, str]]:
    """The items of a mapping of texts."""
    return [(str(key), str(inner)) for key, inner in value.items()] if isinstance(value, dict) else []


def members(value: object) -> list[object]:
    """The items of a list."""
    return list(value) if isinstance(value, list) else []


def records(value: object) -> list[dict[str, object]]:
    """The mappings of a list."""
    return [row for row in members(value) if isinstance(row, dict)]
