"""Calls of the target's functions that can be made again, with the arguments of the capture or with those of now.

A graph keeps the numbers, texts and options that its functions were called with. Whether the driver means others by now
shows in the functions around the capture that are running again at a replay: what they hold may have changed. That a
number of the call is theirs is guessed from its value, so what follows is likely and not proven.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

import torch

Given: TypeAlias = Mapping[tuple[types.CodeType, str], object]
"""What running functions hold, by function and name; tensors are none of it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What ``function`` held at capture, and what it holds now under that name."""

    function: str
    name: str
    old: object
    new: object

    @property
    def words(self) -> str:
        """```mode` of `run` was 'greedy', and is 'sample'``."""
        if isinstance(self.old, PLAIN):
            return f"`{self.name}` of `{self.function}` was {self.old!r}, and is {self.new!r}"
        return f"`{self.name}` of `{self.function}` is another {type(self.new).__name__}"


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of a function of the target, to be made again."""

    code: types.CodeType
    scope: dict[str, Any]
    values: Mapping[str, object]

    def again(self, changes: Sequence[Change] = ()) -> None:
        """Call the function with the arguments that it had, but for those that have changed."""
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
        """Whether the function was called with what has changed, or closes over it."""
        names = (*parameters(self.code), *self.code.co_freevars)
        return any(is_same(value, change.old) for _, value in values_of(names, self.values))


PLAIN = (bool, int, float, str)


def changed(value: object, changes: Sequence[Change]) -> object:
    """What is held now for what was at capture, in what is bound to a function too; any other value as it is."""
    if isinstance(value, functools.partial):
        bound = {name: changed(each, changes) for name, each in value.keywords.items()}
        return functools.partial(value.func, *(changed(each, changes) for each in value.args), **bound)
    return next((change.new for change in changes if is_same(value, change.old)), value)


def is_same(value: object, other: object) -> bool:
    """Whether two values are one object, or the same number or text."""
    if isinstance(other, PLAIN):
        return type(value) is type(other) and value == other
    return value is other


def parameters(code: types.CodeType) -> tuple[str, ...]:
    """The names of a function's parameters, ``*args`` and ``**kwargs`` too."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_varnames[:count]


def values_of(names: Sequence[str], values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The host values under ``names``, those in tuples, dictionaries and bound arguments too."""
    for name in names:
        match values.get(name):
            case None | torch.Tensor():
                continue
            case tuple() as rest:
                yield from values_of([f"{name}[{at}]" for at in range(len(rest))], dict(indexed(name, rest)))
            case functools.partial() as bound:
                yield from values_of(tuple(bound.keywords), bound.keywords)
            case dict() as extra:
                yield from ((str(key), each) for key, each in extra.items() if isinstance(each, PLAIN))
            case value:
                yield name, value


def indexed(name: str, values: Sequence[object]) -> Iterator[tuple[str, object]]:
    """``args[0]`` and so on."""
    return ((f"{name}[{at}]", value) for at, value in enumerate(values))


def given(frames: Sequence[FrameType]) -> Given:
    """What running functions hold under the names of their parameters and of what they assign."""
    return {
        (frame.f_code, name): value
        for frame in frames
        for name, value in values_of(frame.f_code.co_varnames, frame.f_locals)
    }


def changes(before: Given, now: Given) -> list[Change]:
    """What the functions that run again hold now and did not at capture."""
    return [
        Change(code.co_name, name, before[code, name], value)
        for (code, name), value in now.items()
        if (code, name) in before and not is_same(value, before[code, name])
    ]
