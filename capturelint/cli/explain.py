"""``capturelint explain``: the list of rules, or one rule's page."""

from __future__ import annotations

import shutil
import sys
from enum import Enum
from pathlib import Path

import typer

from capturelint.catalog import add_rules
from capturelint.config import load_config
from capturelint.report.page import list_json, list_text, page, page_json, page_markdown, page_text


class PageFormat(Enum):
    """How a page is written."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(explain)


def explain(
    rule: str | None = typer.Argument(None, help="The rule's name; without one, every rule is listed."),
    format: PageFormat = typer.Option(PageFormat.TEXT, "--format", help="How the page is written."),
    every: bool = typer.Option(False, "--all", help="Show every example, not the first two of each kind."),
) -> None:
    """Print a rule's page: what happens at capture, the cure, examples and sources.

    Example: capturelint explain host-sync
    """
    add_rules(load_config(Path.cwd()).rules)
    if rule is None:
        typer.echo(list_json() if format is PageFormat.JSON else list_text(), nl=False)
        return
    subject = page(rule)
    match format:
        case PageFormat.TEXT:
            width = min(shutil.get_terminal_size().columns, 100) if sys.stdout.isatty() else None
            typer.echo(page_text(subject, width=width, every=every), nl=False)
        case PageFormat.JSON:
            typer.echo(page_json(subject), nl=False)
        case PageFormat.MARKDOWN:
            typer.echo(page_markdown(subject), nl=False)
