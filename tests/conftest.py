"""What the machine lacks is deselected, never skipped or failed; results are kept where no user keeps theirs."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable

import pytest
from hypothesis import settings

# No test is timed: what takes a millisecond alone takes a second beside others.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_path() -> str | None:
    """A Chromium of the system."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def neovim_path() -> str | None:
    """A Neovim that has ``vim.lsp.config`` (0.11 and later), which the guide uses."""
    path = shutil.which("nvim")
    if path is None:
        return None
    asked = [path, "--headless", "--clean", "+lua io.write(vim.fn.has('nvim-0.11'))", "+qa!"]
    return path if subprocess.run(asked, capture_output=True, text=True, check=False).stdout == "1" else None


OUTSIDE = ("CI", "GITHUB_ACTIONS", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
"""What a command asks to know where it runs: tests run alike in a job and at a desk, and set what they are about."""

LACKING = {"browser": browser_path, "editor": neovim_path}
"""Markers of tests that need a program of the system, each with what finds it."""


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a cache directory of its own, which also the processes that tests start will use."""
    directory = tempfile.mkdtemp(prefix="capturelint-tests-")
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    os.environ["CAPTURELINT_CACHE_DIR"] = directory
    for name in OUTSIDE:
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm-256color"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs a program that is not there."""
    asked = {name for name in LACKING for item in items if item.get_closest_marker(name)}
    absent = {name for name in asked if LACKING[name]() is None}
    without = [item for item in items if any(item.get_closest_marker(name) for name in absent)]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line in an empty directory: exit code, stdout, stderr."""
    from capturelint.cli import main

    monkeypatch.chdir(tmp_path)

    def invoke(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["capturelint", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return invoke
