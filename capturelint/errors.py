"""Every error that capturelint raises on purpose, as one tree.

The command line turns each into one line on stderr and exit code 2. Anything else is a bug and keeps its traceback, but
in the analysis of a file: there it costs that file and is told as a fault to report.
"""

from __future__ import annotations

from pathlib import Path


class CapturelintError(Exception):
    """A fault of the input, the configuration or the machine. ``str`` is the whole message."""


class UsageError(CapturelintError):
    """A command line that cannot be carried out."""


class ConfigError(CapturelintError):
    """A configuration file with an unknown key or a wrong type."""


class CatalogError(CapturelintError):
    """A file under ``rules/`` that is not what the catalogue needs."""


class SourceError(CapturelintError):
    """A source file that cannot be read or parsed. The other files are still checked."""

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason

    def __reduce__(self) -> tuple[type[SourceError], tuple[Path, int | None, str]]:
        """From one process to another as it was made; exceptions come back with their message alone otherwise."""
        return SourceError, (self.path, self.line, self.reason)


class TargetError(CapturelintError):
    """A target of ``verify`` that cannot be loaded, built or run eagerly."""


class DeviceError(CapturelintError):
    """The machine lacks what was asked for (a GPU, torch, transformers)."""


class LogError(CapturelintError):
    """A log that cannot be read."""


class HistogramError(CapturelintError):
    """A histogram of batch sizes that cannot be planned for."""
