"""``capturelint lsp``: the language server, over standard input and output."""

from __future__ import annotations

import typer

from capturelint.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("lsp", epilog="Example: capturelint lsp")(lsp)


def lsp(
    stdio: bool = typer.Option(True, "--stdio", help="Talk over standard input and output; the only way there is."),
) -> None:
    """Serve an editor: findings while typing.

    An editor starts it; it shows the rule's page on hover, and suppressions as code actions.

    Exit codes: 0 the editor ended the session, 2 the extra `lsp` is not installed.
    """
    try:
        from capturelint.lsp.server import main
    except ImportError as error:
        raise UsageError("the language server needs pygls; install it with: pip install 'capturelint[lsp]'") from error
    main()
