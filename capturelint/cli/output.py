"""Where a report goes: to standard output, or to the file that an option names."""

from __future__ import annotations

import sys
from pathlib import Path

from capturelint.errors import UsageError


def write(text: str, output: Path | None, option: str = "--output") -> None:
    """Write a text; ``None`` is standard output. Raises ``UsageError`` that names the option and the file."""
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option} {output}: {error.strerror or error}") from error
