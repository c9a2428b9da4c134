"""``capturelint explain``: the list of rules, or one rule's page."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path

import typer

from capturelint.catalog import add_rules
from capturelint.cli.terminal import width_of
from capturelint.config import load_config
from capturelint.report.page import list_json, list_text, page, page_json, page_markdown, page_text

MAX_WIDTH = 100
"""Columns of a page's prose; longer lines are hard to read."""


class PageFormat(Enum):
    """How a page is written."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: capturelint explain host-sync")(explain)


def explain(
    rule: str | None = typer.Argument(None, metavar="RULE", help="The rule's name; without one, every rule is listed."),
    format: PageFormat = typer.Option(PageFormat.TEXT, "--format", help="How the page is written."),
    every: bool = typer.Option(False, "--all", help="Show every example, not the first two of each kind."),
) -> None:
    """Print a rule's page: what it means, the cure, examples, sources.

    Exit codes: 0 the page or the list was printed, 2 an unknown rule.
    """
    add_rules(load_config(Path.cwd()).rules)
    width = width_of(sys.stdout)
    if rule is None:
        typer.echo(list_json() if format is PageFormat.JSON else list_text(width), nl=False)
        return
    subject = page(rule)
    match format:
        case PageFormat.TEXT:
            typer.echo(page_text(subject, width=min(width, MAX_WIDTH) if width else None, every=every), nl=False)
        case PageFormat.JSON:
            typer.echo(page_json(subject), nl=False)
        case PageFormat.MARKDOWN:
            typer.echo(page_markdown(subject), nl=False)
