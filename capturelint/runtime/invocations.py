"""Calls of the target's functions that can be made again, with the numbers of the capture or with those of now.

A graph keeps the numbers that its functions were called with. Whether the driver means others by now shows in the
functions around the capture that are running again at a replay: what they are given may have changed.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

Number: TypeAlias = bool | int | float
Given: TypeAlias = Mapping[tuple[types.CodeType, str], Number]
"""The host numbers that functions were given, by function and parameter."""


@dataclass(frozen=True, slots=True)
class Change:
    """A number that ``function`` was given at capture, and the one that it is given now."""

    function: str
    name: str
    old: Number
    new: Number


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of a function of the target, to be made again."""

    code: types.CodeType
    scope: dict[str, Any]
    values: Mapping[str, object]

    def again(self, changes: Sequence[Change] = ()) -> None:
        """Call the function with the arguments that it had, but for numbers that have changed."""
        cells = tuple(types.CellType(changed(self.values.get(name), changes)) for name in self.code.co_freevars)
        function = types.FunctionType(self.code, self.scope, self.code.co_name, None, cells)
        names = self.code.co_varnames
        count = self.code.co_argcount
        positional = [changed(self.values[name], changes) for name in names[:count]]
        more = count + self.code.co_kwonlyargcount
        by_name = {name: changed(self.values[name], changes) for name in names[count:more]}
        if self.code.co_flags & 0x04:  # *args
            rest = self.values[names[more]]
            positional += [changed(each, changes) for each in rest] if isinstance(rest, tuple) else []
            more += 1
        if self.code.co_flags & 0x08:  # **kwargs
            extra = self.values[names[more]]
            by_name |= {name: changed(each, changes) for name, each in extra.items()} if isinstance(extra, dict) else {}
        function(*positional, **by_name)

    def takes(self, change: Change) -> bool:
        """Whether the function was called with the number that has changed, or closes over it."""
        names = (*parameters(self.code), *self.code.co_freevars)
        return any(is_same(value, change.old) for _, value in numbers(names, self.values))


def changed(value: object, changes: Sequence[Change]) -> object:
    """The number of now for one of the capture; any other value as it is."""
    return next((change.new for change in changes if is_same(value, change.old)), value)


def is_same(value: object, number: Number) -> bool:
    """Whether a value is that number, of that kind."""
    return type(value) is type(number) and value == number


def parameters(code: types.CodeType) -> tuple[str, ...]:
    """The names of a function's parameters, ``*args`` and ``**kwargs`` too."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_varnames[:count]


def numbers(names: Sequence[str], values: Mapping[str, object]) -> Iterator[tuple[str, Number]]:
    """The host numbers under ``names``, those in tuples and dictionaries too."""
    for name in names:
        match values.get(name):
            case bool() | int() | float() as number:
                yield name, number
            case tuple() as rest:
                yield from ((f"{name}[{at}]", each) for at, each in enumerate(rest) if isinstance(each, (int, float)))
            case dict() as extra:
                yield from ((f"{key}", each) for key, each in extra.items() if isinstance(each, (int, float)))


def given(frames: Sequence[FrameType]) -> Given:
    """The numbers that running functions were given."""
    return {
        (frame.f_code, name): number
        for frame in frames
        for name, number in numbers(parameters(frame.f_code), frame.f_locals)
    }


def changes(before: Given, now: Given) -> list[Change]:
    """What the functions that run again are given now and were not at capture."""
    return [
        Change(code.co_name, name, before[code, name], number)
        for (code, name), number in now.items()
        if (code, name) in before and before[code, name] != number
    ]
