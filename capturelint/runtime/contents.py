"""What the lists, dictionaries, sets and deques of a state hold, so that a step's additions can be taken back.

Containers are read and written as the built-in ones that they are: no code of a derived class runs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from capturelint.runtime.homes import walk
from capturelint.runtime.invocations import is_same

Container: TypeAlias = "list[object] | dict[object, object] | set[object] | deque[object]"


@dataclass(frozen=True, slots=True)
class Content:
    """The items that a container held when it was looked at. ``name`` is the slot that it is found in."""

    name: str
    container: Container
    items: Container

    def has_changed(self) -> bool:
        """Whether it holds other items by now, or the same in another order."""
        now, before = flat(self.container), flat(self.items)
        return len(now) != len(before) or not all(map(is_same, now, before))

    def restore(self) -> None:
        """Put the items back."""
        match self.container, self.items:
            case list() as held, list() as items:
                list.__setitem__(held, slice(None), items)
            case dict() as held, dict() as items:
                dict.clear(held)
                dict.update(held, items)
            case set() as held, set() as items:
                set.clear(held)
                set.update(held, items)
            case deque() as held, deque() as items:
                deque.clear(held)
                deque.extend(held, items)


def contents(state: object) -> list[Content]:
    """Every container of a state with its items, the state itself included."""
    found = [("state", state), *((name, value) for name, _, value in walk(state))]
    return [Content(name, value, copied(value)) for name, value in found if isinstance(value, (list, dict, set, deque))]


def copied(container: Container) -> Container:
    """A built-in container of the same kind with the same items."""
    match container:
        case list():
            return list.copy(container)
        case dict():
            return dict.copy(container)
        case set():
            return set.copy(container)
        case _:
            return deque(deque.__iter__(container))


def flat(container: Container) -> list[object]:
    """The items, keys beside values, in order."""
    items = copied(container)
    return list(chain.from_iterable(items.items()) if isinstance(items, dict) else items)
