"""What the machine lacks is deselected, never skipped or failed: the tests that need a browser."""

import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_path() -> str | None:
    """A Chromium of the system."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs a browser where there is none."""
    if browser_path() is not None:
        return
    without = [item for item in items if item.get_closest_marker("browser")]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]
