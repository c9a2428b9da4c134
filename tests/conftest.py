"""What the machine lacks is deselected, never skipped or failed; results are kept where no user keeps theirs."""

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# No test is timed: what takes a millisecond alone takes a second beside others.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_path() -> str | None:
    """A Chromium of the system."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a cache directory of its own, which also the processes that tests start will use."""
    directory = tempfile.mkdtemp(prefix="capturelint-tests-")
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    os.environ["CAPTURELINT_CACHE_DIR"] = directory


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs a browser where there is none."""
    if browser_path() is not None:
        return
    without = [item for item in items if item.get_closest_marker("browser")]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]
