"""Which lines may be blamed: those of the target's own project, never torch's or ours.

Frames are asked for by file name thousands of times a step, so the answer is cached a file.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType, TracebackType

from capturelint.runtime.observations import Spot

FOREIGN = ("site-packages", "dist-packages")
MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


@dataclass(frozen=True, slots=True)
class Project:
    """The files whose lines belong to the target."""

    roots: tuple[Path, ...]
    answers: dict[str, bool] = field(default_factory=dict)

    def owns(self, filename: str) -> bool:
        """Whether a code object's file is the target's."""
        known = self.answers.get(filename)
        if known is None:
            known = self.answers[filename] = self.decide(filename)
        return known

    def decide(self, filename: str) -> bool:
        """A file under a root, but not in an environment or a copy of ours that happens to lie there."""
        path = Path(filename)
        if filename.startswith("<") or is_ours(path) or is_standard(path):
            return False
        for root in self.roots:
            if path.is_relative_to(root):
                return not any(part in FOREIGN for part in path.relative_to(root).parts)
        return False

    def modules(self) -> list[ModuleType]:
        """The modules that are the target's and loaded."""
        found = [(module, getattr(module, "__file__", None)) for module in list(sys.modules.values())]
        return [module for module, file in found if isinstance(file, str) and self.owns(file)]

    def spots(self, frame: FrameType | None) -> tuple[Spot, ...]:
        """The target's lines on the stack above ``frame``, entry first."""
        found = []
        while frame is not None:
            code = frame.f_code
            if self.owns(code.co_filename):
                found.append(Spot(code.co_filename, frame.f_lineno, name_of(frame)))
            frame = frame.f_back
        return tuple(reversed(found))

    def raised_at(self, error: BaseException) -> tuple[Spot, ...]:
        """The target's lines in a traceback, entry first, with columns where Python knows them."""
        return tuple(spot for spot in traceback_spots(error.__traceback__) if self.owns(spot.path))


def project_roots(target: Path) -> tuple[Path, ...]:
    """The target's folder and the project around it: a decode step in ``tests`` runs the code in ``src``."""
    folder = target.resolve().parent
    around = next((each for each in (folder, *folder.parents) if any((each / mark).exists() for mark in MARKS)), folder)
    return (folder,) if around == folder else (folder, around)


def name_of(frame: FrameType) -> str:
    """``Class.method`` where the frame has a ``self``; Python 3.10 has no ``co_qualname``."""
    qualified: str | None = getattr(frame.f_code, "co_qualname", None)
    return (qualified or frame.f_code.co_name).replace(".<locals>", "")


def traceback_spots(trace: TracebackType | None) -> Iterator[Spot]:
    """Every frame of a traceback."""
    frames = [] if trace is None else list(traceback.walk_tb(trace))
    summaries = traceback.extract_tb(trace)
    for (frame, _), summary in zip(frames, summaries, strict=True):
        column = getattr(summary, "colno", None)
        end = getattr(summary, "end_colno", None)
        yield Spot(
            summary.filename,
            summary.lineno or 0,
            name_of(frame),
            0 if column is None else column + 1,
            getattr(summary, "end_lineno", None) or 0,
            0 if end is None else end + 1,
        )


def is_ours(path: Path) -> bool:
    """Whether the file is capturelint's own code."""
    return path.is_relative_to(Path(__file__).parents[1])


def is_standard(path: Path) -> bool:
    """Whether the file belongs to Python itself."""
    library = Path(sysconfig.get_path("stdlib"))
    return path.is_relative_to(library) and not any(part in FOREIGN for part in path.parts)


def first_error(error: BaseException, refusals: tuple[str, ...]) -> BaseException:
    """The cause of a failed capture: of the ``__context__`` chain, the oldest refusal.

    The error that arrives last is "operation failed due to a previous error during capture". Older errors that are
    no refusals are ``except`` blocks in which the step raised, so they are passed over.
    """
    chain = [error]
    while chain[-1].__context__ is not None and chain[-1].__context__ not in chain:
        chain.append(chain[-1].__context__)
    return next((each for each in reversed(chain) if any(word in text_of(each) for word in refusals)), chain[-1])


def text_of(error: BaseException) -> str:
    """What an error says; nothing where its class, which may be the target's, fails to say it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the target's code runs here and may raise anything
        return ""


def python_version() -> tuple[int, int]:
    """For what only newer Pythons know."""
    return sys.version_info[:2]
