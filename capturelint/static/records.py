"""Immutable records that cost little to make and to change: an analysis makes some millions of them.

A frozen dataclass fills its fields through ``object.__setattr__``, several times as dear as an assignment, and
``dataclasses.replace`` asks about every field at every call. As ``dataclasses`` does, the functions are put together
as text, once for each sort of record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, TypeVar

Record = TypeVar("Record")
COPIERS: dict[type[object], Callable[[Any], Any]] = {}
"""What makes another record with the same fields, by the sort of record."""


def quick(cls: type[Record]) -> type[Record]:
    """The same frozen dataclass, made by assignments; that nobody assigns to it later is left to the type checker."""
    own: tuple[Field[Any], ...] = fields(cls)  # type: ignore[arg-type]
    made: dict[str, Any] = {"new": object.__new__, "cls": cls, "MISSING": MISSING}
    parameters, assigned = [], []
    for field in own:
        made |= {f"default_{field.name}": field.default, f"make_{field.name}": field.default_factory}
        is_made = field.default_factory is not MISSING
        has_default = is_made or field.default is not MISSING
        parameters.append(f"{field.name}=default_{field.name}" if has_default else field.name)
        value = f"make_{field.name}() if {field.name} is MISSING else {field.name}" if is_made else field.name
        assigned.append(f"    self.{field.name} = {value}")
    source = [
        f"def __init__(self, {', '.join(parameters)}):",
        *assigned,
        "    pass",
        "def copied(record):",
        "    made = new(cls)",
        *[f"    made.{field.name} = record.{field.name}" for field in own],
        "    return made",
    ]
    exec("\n".join(source), made)
    cls.__init__ = made["__init__"]  # type: ignore[method-assign]
    COPIERS[cls] = made["copied"]
    for name in ("__setattr__", "__delattr__"):
        delattr(cls, name)
    return cls


if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(record: Record, /, **changes: object) -> Record:
        """``dataclasses.replace`` for quick records."""
        made = COPIERS[type(record)](record)
        for name, value in changes.items():
            setattr(made, name, value)
        return made
