"""Names that the context replaces, and puts back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType

MISSING = object()


class Patches:
    """Replaced attributes, restored in reverse order."""

    def __init__(self) -> None:
        self.replaced: list[tuple[object, str, object]] = []

    def set(self, owner: object, name: str, value: object) -> None:
        """Replace ``owner.name``."""
        held = vars(owner).get(name, MISSING)
        self.replaced.append((owner, name, held))
        setattr(owner, name, value)

    def set_everywhere(self, module: ModuleType, replacements: Mapping[str, object]) -> None:
        """Replace names of ``module`` there and in the submodules that imported them by name."""
        prefix = module.__name__ + "."
        inner = [held for name, held in list(sys.modules.items()) if name.startswith(prefix)]
        for name, value in replacements.items():
            original = getattr(module, name, MISSING)
            self.set(module, name, value)
            for submodule in inner:
                if original is not MISSING and getattr(submodule, "__dict__", {}).get(name) is original:
                    self.set(submodule, name, value)

    def undo(self) -> None:
        """Put everything back."""
        while self.replaced:
            owner, name, held = self.replaced.pop()
            if held is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, held)
