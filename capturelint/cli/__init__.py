"""The command line: one module a command, each imported only when it runs.

``main`` is the one place where a ``CapturelintError`` becomes a line on stderr and exit code 2.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

from capturelint import __version__
from capturelint.errors import CapturelintError, UsageError
from capturelint.escape import visible

COMMANDS = ("check", "verify", "logs", "plan", "generate", "explain", "facts", "init", "doctor", "lsp", "cache")


class Commands(TyperGroup):
    """Loads ``capturelint.cli.<command>`` when that command is asked for: ``check`` need not wait for the others."""

    # typer has a Context of click's in some versions and one of its own in others; both are what it hands out.
    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override,unused-ignore]
        """Every command that has something to do, in the order of use."""
        return [name for name in COMMANDS if self.get_command(ctx, name) is not None]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> TyperCommand | None:  # type: ignore[override,unused-ignore]
        """One command; for an unknown name all are loaded, so that the nearest can be named."""
        for name in [cmd_name] if cmd_name in COMMANDS else COMMANDS:
            self.load(name)
        return cast("TyperCommand | None", self.commands.get(cmd_name))

    def load(self, name: str) -> None:
        """Register the commands of one module."""
        if name in self.commands:
            return
        alone = typer.Typer(rich_markup_mode=None)
        alone.callback()(options)  # with a callback, typer builds a group and not the one command
        import_module(f"capturelint.cli.{name}").register(alone)
        self.commands.update(typer.main.get_group(alone).commands)


app = typer.Typer(
    cls=Commands,
    name="capturelint",
    help="Find what breaks under CUDA-graph capture in PyTorch decode steps.",
    epilog="Example: capturelint check src/",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: boxes leave the words half of 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        typer.echo(f"capturelint {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Show the version."),
) -> None:
    """Find what breaks under CUDA-graph capture in PyTorch decode steps."""


def require_directory() -> None:
    """Raise ``UsageError`` where the working directory was deleted: no path can be shown from it."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError("the working directory does not exist any more") from error


def nowhere() -> TextIO:
    """For a stream that was closed before the start: writing to none at all fails, or goes to the other one."""
    return open(os.devnull, "w")


def main() -> None:
    """Run the command line; exit codes are 0 (nothing found), 1 (found), 2 (input, usage or machine at fault)."""
    sys.stdout, sys.stderr = sys.stdout or nowhere(), sys.stderr or nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal or a pipe of ASCII shows sources all the same
    try:
        require_directory()
        try:
            app()
        finally:
            sys.stdout.flush()
    except CapturelintError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        # Commands tell of the files that they are given; what is left is a report that has no room on its disk.
        print(f"error: {visible(str(error.strerror or error))}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered would fail once more at the exit
        sys.exit(2)
