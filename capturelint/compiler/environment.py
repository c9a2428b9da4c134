"""The environment of a process that compiles a step: cold caches, and nothing that decides what can be heard."""

from __future__ import annotations

from collections.abc import Mapping

from capturelint.logs.environment import COLD


def cold(given: Mapping[str, str]) -> dict[str, str]:
    """``given`` for such a process."""
    return {name: value for name, value in given.items() if name != "TORCH_LOGS"} | COLD
