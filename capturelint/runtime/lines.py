"""Which lines of the target a step executed, in order: where two runs part, the last common line is the branch.

ATen calls cannot show an ``if`` on a Python value; executed lines can. Used only when something already went wrong,
since line tracing is slow.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from capturelint.runtime.homes import Slot
from capturelint.runtime.observations import Spot
from capturelint.runtime.project import Project, is_standard

MAX_LINES = 2_000_000
Die: TypeAlias = Callable[[], object]
"""What tells whether a random generator has moved."""

Tracer: TypeAlias = Callable[[FrameType, str, object], "Tracer | None"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line that ran. ``depth`` counts the target's frames below it."""

    path: str
    line: int
    depth: int


@dataclass(frozen=True, slots=True)
class Store:
    """A slot that was given another tensor or number, and the line that did it."""

    slot: Slot
    after: object
    spots: tuple[Spot, ...]


@dataclass(slots=True)
class LineLog:
    """Lines, stores to the watched slots, and draws from the host's random generators and clocks.

    A slot is watched up to its first store; with ``keeps`` every store is noted. NumPy's draws are no calls that Python
    tells of: ``dice`` are asked after each line whether they have moved.
    """

    project: Project
    watched: list[Slot] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    draws: list[tuple[Spot, ...]] = field(default_factory=list)
    depth: int = 0
    last: tuple[Spot, ...] = ()
    keeps: bool = False
    dice: Sequence[Die] = ()
    rolled: list[object] = field(default_factory=list)

    @contextmanager
    def recording(self) -> Iterator[LineLog]:
        """Trace this thread's lines while entered."""
        previous, profile = sys.gettrace(), sys.getprofile()
        self.rolled = [die() for die in self.dice]
        sys.setprofile(self.on_c_call)
        sys.settrace(self.on_call)
        try:
            yield self
        finally:
            sys.settrace(previous)
            sys.setprofile(profile)
            self.look_at_slots()

    def on_call(self, frame: FrameType, event: str, argument: object) -> Tracer | None:
        """A function starts: follow its lines only if it is the target's."""
        if not self.project.owns(frame.f_code.co_filename):
            return None
        self.depth += 1
        return self.on_line

    def on_c_call(self, frame: FrameType, event: str, argument: object) -> None:
        """A built-in starts: note those that answer anew each time, asked by the target or by Python's own modules.

        torch looks at clocks too, to time itself.
        """
        if event != "c_call" or not is_draw(argument):
            return
        asking: FrameType | None = frame
        while asking is not None and is_standard(Path(asking.f_code.co_filename)):
            asking = asking.f_back
        if asking is not None and self.project.owns(asking.f_code.co_filename):
            self.draws.append(self.project.spots(asking))

    def on_line(self, frame: FrameType, event: str, argument: object) -> Tracer | None:
        """A line starts, or its function returns."""
        if event == "return":
            self.look_at_slots()
            self.depth -= 1
            # A store on the caller's line happens after this return.
            self.last = self.project.spots(frame.f_back) if self.watched or self.dice else ()
        elif event == "line" and len(self.lines) < MAX_LINES:
            self.look_at_slots()
            self.lines.append(Line(frame.f_code.co_filename, frame.f_lineno, self.depth))
            if self.watched or self.dice:
                self.last = self.project.spots(frame)
        return self.on_line

    def look_at_slots(self) -> None:
        """Note the slots that the line before has rebound, and the dice that it threw; its spots are in ``last``."""
        if self.dice and (rolled := [die() for die in self.dice]) != self.rolled:
            self.rolled = rolled
            self.draws.append(self.last)
        for slot in list(self.watched):
            if slot.has_changed():
                self.watched.remove(slot)
                now = slot.current()
                self.stores.append(Store(slot, now, self.last))
                if self.keeps:
                    self.watched.append(replace(slot, value=now))


def numpy_dice(generators: Iterable[object]) -> list[Die]:
    """NumPy's global generator, and those that are given: what tells one state of them from the next."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []

    def everybodys() -> object:
        state = numpy.random.get_state(legacy=False)
        return state["state"]["pos"], state["has_gauss"]

    return [everybodys, *(partial(state_of, each) for each in generators)]


def state_of(generator: object) -> object:
    """The state of one of NumPy's generators, as a text."""
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", None)
    return str(getattr(bits, "state", None))


def numpy_kinds() -> tuple[type, ...]:
    """The classes of NumPy's generators, where it is loaded."""
    numpy = sys.modules.get("numpy")
    return (numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()


def is_draw(function: object) -> bool:
    """Whether a built-in draws a random number or tells the time."""
    owner = getattr(function, "__self__", None)
    if function is os.urandom or isinstance(owner, random.Random) or getattr(owner, "__name__", "") == "time":
        return True
    return type(owner).__module__.startswith("numpy.random")


def parting(first: list[Line], second: list[Line]) -> Line | None:
    """The last common line before two runs part, in the function where they part; ``None`` if they never do."""
    pairs = zip(first, second, strict=False)
    at = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    if at == len(first) == len(second):
        return None
    depth = min(lines[at].depth for lines in (first, second) if at < len(lines))
    return next((line for line in reversed(first[:at]) if line.depth <= depth), None)
