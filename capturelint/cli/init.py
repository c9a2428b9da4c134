"""``capturelint init``: configuration, pre-commit and CI stanzas for a repository, shown before they are written.

A file that exists is never changed, except that a ``pyproject.toml`` without our table gets it at its end; for the
others the stanza is shown, to be pasted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from capturelint.cli.terminal import is_terminal
from capturelint.errors import UsageError
from capturelint.escape import visible
from capturelint.report.model import counted

CONFIG = """\
# torch = ">=2.6"             # default: the range that this project declares
# entry = ["{package}.model:decode_step"]  # where recorded code starts, if it is not found
confidence = "likely"
"""
PRE_COMMIT = """\
repos:
  - repo: local
    hooks:
      - id: capturelint
        name: capturelint
        entry: capturelint check
        language: python
        additional_dependencies: [capturelint]
        types: [python]
        pass_filenames: false
        args: [.]
"""
WORKFLOW = """\
name: capturelint
on: [push, pull_request]
permissions:
  contents: read
jobs:
  check:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install capturelint
      - run: capturelint check . --format github
"""
GITLAB = """\
capturelint:
  image: python:3.12
  script:
    - pip install capturelint
    - capturelint check . --format junit --output capturelint.xml
  artifacts:
    when: always
    reports:
      junit: capturelint.xml
"""


@dataclass(frozen=True, slots=True)
class Stanza:
    """What belongs into one file. ``whole`` is the file's new text, ``None`` where it is to be pasted by hand."""

    path: Path
    text: str
    whole: str | None


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: capturelint init --yes")(init)


def init(
    directory: Path = typer.Argument(Path(), metavar="DIRECTORY", help="The root of the repository."),
    yes: bool = typer.Option(False, "--yes", help="Write without asking."),
) -> None:
    """Set up a repository: configuration, pre-commit and CI.

    The stanzas are shown first, and written if you agree.

    Exit codes: 0 done or nothing to do, 2 not a directory.
    """
    if not directory.is_dir():
        raise UsageError(f"no such directory: {directory}")
    stanzas = list(plan(directory))
    for stanza in stanzas:
        purpose = "to write" if stanza.whole is not None else "exists; to paste"
        typer.echo(f"--- {visible(str(stanza.path))} ({purpose})\n{stanza.text}")
    new = [stanza for stanza in stanzas if stanza.whole is not None]
    if not new:
        typer.echo("nothing to write")
    elif yes or (is_terminal(sys.stdin) and typer.confirm(f"write {counted(len(new), 'file')}?")):
        for stanza in new:
            write(stanza)
        typer.echo(f"{counted(len(new), 'file')} written")
    else:
        typer.echo(f"nothing written; --yes writes {counted(len(new), 'file')}")


def plan(directory: Path) -> Iterator[Stanza]:
    """The stanzas that a repository lacks."""
    yield from configuration(directory)
    yield from wanted(directory / ".pre-commit-config.yaml", PRE_COMMIT)
    if is_on_gitlab(directory):
        yield from wanted(directory / ".gitlab-ci.yml", GITLAB)
    elif (directory / ".git").exists():
        yield from wanted(directory / ".github/workflows/capturelint.yml", WORKFLOW)


def is_on_gitlab(directory: Path) -> bool:
    """Whether the repository has a GitLab pipeline or comes from there."""
    remotes = directory / ".git/config"
    return (directory / ".gitlab-ci.yml").exists() or (remotes.is_file() and "gitlab" in read(remotes))


def configuration(directory: Path) -> Iterator[Stanza]:
    """Our table at the end of ``pyproject.toml``, or a file of our own where there is none."""
    project, own = directory / "pyproject.toml", directory / "capturelint.toml"
    text = CONFIG.format(package=directory.resolve().name.replace("-", "_"))
    if own.exists():
        return
    if not project.exists():
        yield Stanza(own, text, text)
        return
    before = read(project)
    if "[tool.capturelint" not in before:
        table = f"[tool.capturelint]\n{text}"
        yield Stanza(project, table, f"{before.rstrip()}\n\n{table}")


def wanted(path: Path, text: str) -> Iterator[Stanza]:
    """A stanza for a file that does not mention us."""
    if not path.exists():
        yield Stanza(path, text, text)
    elif "capturelint" not in read(path):
        yield Stanza(path, text, None)


def read(path: Path) -> str:
    """The text of an existing file. Raises ``UsageError``."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def write(stanza: Stanza) -> None:
    """Write one file. Raises ``UsageError``."""
    try:
        stanza.path.parent.mkdir(parents=True, exist_ok=True)
        stanza.path.write_text(stanza.whole or "", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{stanza.path} cannot be written: {error.strerror}") from error
