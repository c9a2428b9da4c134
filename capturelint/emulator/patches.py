"""Names that the context replaces, and puts back."""

from __future__ import annotations

import sys
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

    def set_everywhere(self, module: ModuleType, name: str, value: object) -> None:
        """Replace ``module.name`` there and in the submodules that imported it by name."""
        original = getattr(module, name, MISSING)
        self.set(module, name, value)
        if original is MISSING:
            return
        prefix = module.__name__ + "."
        for inner_name, inner in list(sys.modules.items()):
            if inner_name.startswith(prefix) and isinstance(inner, ModuleType) and vars(inner).get(name) is original:
                self.set(inner, name, value)

    def undo(self) -> None:
        """Put everything back."""
        while self.replaced:
            owner, name, held = self.replaced.pop()
            if held is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, held)
