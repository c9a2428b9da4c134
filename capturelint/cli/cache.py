"""``capturelint cache``: where results of earlier runs are kept, and away with them."""

from __future__ import annotations

from pathlib import Path

import typer

from capturelint.cli.check import store_of
from capturelint.config import load_config
from capturelint.errors import UsageError
from capturelint.escape import visible
from capturelint.store import Store


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Say where results of earlier runs are kept, or clear them.",
        epilog="Example: capturelint cache clear",
    )
    group.command("dir", epilog="Example: capturelint cache dir")(show_directory)
    group.command("clear", epilog="Example: capturelint cache clear")(clear)
    app.add_typer(group, name="cache")


def show_directory(config: Path | None = typer.Option(None, metavar="FILE", help="Configuration file.")) -> None:
    """Print the directory that results of earlier runs are kept in.

    Exit codes: 0 printed, 2 there is none.
    """
    typer.echo(visible(str(store(config).directory)))


def clear(config: Path | None = typer.Option(None, metavar="FILE", help="Configuration file.")) -> None:
    """Remove every result of earlier runs. What else is in the directory stays.

    Exit codes: 0 removed, 2 there is no directory to keep results in.
    """
    found = store(config)
    removed = found.clear()
    typer.echo(f"{removed} {'record' if removed == 1 else 'records'} removed from {visible(str(found.directory))}")


def store(config: Path | None) -> Store:
    """The store that ``check`` uses in this directory. Raises ``UsageError`` where there can be none."""
    found = store_of(load_config(Path.cwd(), config))
    if found is None:
        raise UsageError("no directory to keep results in; name one with cache-dir or CAPTURELINT_CACHE_DIR")
    return found
