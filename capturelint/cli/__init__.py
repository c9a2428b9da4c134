"""The command line: one module a command, each imported only when it runs.

``main`` is the one place where a ``CapturelintError`` becomes a line on stderr and exit code 2.
"""

from __future__ import annotations

import sys

import typer

from capturelint import __version__
from capturelint.cli import check, doctor, explain, facts, generate, init, logs, plan, verify
from capturelint.errors import CapturelintError
from capturelint.escape import visible

app = typer.Typer(
    name="capturelint",
    help="Find what breaks under CUDA-graph capture in PyTorch decode steps.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
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


for module in (check, verify, logs, plan, generate, explain, facts, init, doctor):
    module.register(app)


def main() -> None:
    """Run the command line; exit codes are 0 (nothing found), 1 (found), 2 (input, usage or machine at fault)."""
    try:
        app()
    except CapturelintError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        sys.exit(2)
