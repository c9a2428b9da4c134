"""What torch says while a step is compiled and run, from every place where it says it.

No single source is complete: loggers do not propagate to their parents, counters miss what was only logged, and since
torch 2.11 a partition is neither. So handlers stand on the exact loggers, the counters are read before and after, the
one function that every skip passes through is wrapped, and warnings are kept.

The surprise: an artifact such as ``recompiles`` is asked for by name and not by level, so torch's own configuration
has to be set; that does nothing where ``TORCH_LOGS`` is set, which then decides what can be heard.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch._dynamo
from torch._logging._internal import set_logs

from capturelint.catalog import load_messages
from capturelint.logs.environment import TORCH_LOGS
from capturelint.logs.matcher import LogFinding, Matcher
from capturelint.logs.reader import Page

SUFFIXES = tuple(f".__{artifact}" for artifact in TORCH_LOGS)
DYNAMO_MODULES = ("torch._dynamo.symbolic_convert", "torch._dynamo.convert_frame", "torch._dynamo.guards")
INDUCTOR_MODULES = (
    "torch._dynamo.backends.cudagraphs",
    "torch._inductor.compile_fx",
    "torch._inductor.cudagraph_trees",
    "torch._inductor.cudagraph_utils",
    "torch._inductor.output_code",
    "torch._inductor.scheduler",
    "torch._inductor.utils",
)
"""Imported first, because a logger exists once its module does."""
EMITTER = "log_cudagraph_skip_and_bump_counter"
"""Imported by name into the modules that call it, so each of them is patched."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One log record or warning."""

    logger: str
    text: str


@dataclass(slots=True)
class Ear:
    """Everything heard so far."""

    records: list[Heard] = field(default_factory=list)
    skips_emitted: list[str] = field(default_factory=list)
    counters_before: Counter[tuple[str, str]] = field(default_factory=Counter)

    def counted(self, group: str, key: str) -> int:
        """How far a counter of torch's has moved."""
        return read_counters()[group, key] - self.counters_before[group, key]

    def findings(self) -> list[LogFinding]:
        """What the messages of ``rules/messages.yaml`` make of the records, each record being a message."""
        content = "".join(f"{prefixed(number, heard)}" for number, heard in enumerate(self.records)).encode()
        page = Page(content, 0, len(content), 1)
        return list(Matcher(load_messages()).find(page, Path("torch")))


def prefixed(number: int, heard: Heard) -> str:
    """A record as torch would print it: the prefix on every line, with a time that no other record has."""
    prefix = f"V0101 00:00:00.{number:06d} 1 {heard.logger}:1] "
    return "".join(f"{prefix}{line}\n" for line in heard.text.split("\n"))


class Keeper(logging.Handler):
    """A handler that keeps what it is given."""

    def __init__(self, ear: Ear) -> None:
        super().__init__(logging.DEBUG)
        self.ear = ear

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.ear.records.append(Heard(record.name, record.getMessage()))


@contextmanager
def listening(*, to_inductor: bool = True) -> Iterator[Ear]:
    """Hear everything that torch says of compilation and CUDA graphs; nothing of it is printed meanwhile.

    Inductor takes seconds to import and is left alone unless it is listened ``to_inductor``.
    """
    modules = (*DYNAMO_MODULES, *(INDUCTOR_MODULES if to_inductor else ()))
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:  # not in every version
            continue
    ear = Ear(counters_before=read_counters())
    with ExitStack() as opened:
        if "TORCH_LOGS" not in os.environ:
            set_logs(graph_breaks=True, recompiles=True, cudagraphs=True, perf_hints=True)
            opened.callback(set_logs)
        for logger in loggers():
            opened.enter_context(heard_by(logger, Keeper(ear)))
        for module in modules:
            opened.enter_context(emitter_patched(module, ear))
        caught = opened.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        try:
            yield ear
        finally:
            ear.records += [Heard("warnings", str(warning.message)) for warning in caught]


def loggers() -> list[logging.Logger]:
    """The loggers of the artifacts, and the two parents of what is shown by default."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.") and name.endswith(SUFFIXES)]
    return [logging.getLogger(name) for name in ("torch._dynamo", "torch._inductor", *sorted(names))]


@contextmanager
def heard_by(logger: logging.Logger, keeper: Keeper) -> Iterator[None]:
    """Put ``keeper`` in the place of a logger's handlers."""
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:] = [keeper]
    logger.propagate = False
    if logger.name.endswith(SUFFIXES):
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.propagate = propagate
        logger.setLevel(level)


@contextmanager
def emitter_patched(module: str, ear: Ear) -> Iterator[None]:
    """Keep every message that a module hands to the function that logs and counts skips."""
    try:
        emit: Callable[[str], None] | None = getattr(importlib.import_module(module), EMITTER, None)
    except ImportError:
        emit = None
    if emit is None:
        yield
        return
    known = emit

    def keep(message: str) -> None:
        if not ear.skips_emitted or ear.skips_emitted[-1] != message:  # one wrapper may call another
            ear.skips_emitted.append(message)
        known(message)

    with patch(f"{module}.{EMITTER}", keep):
        yield


def read_counters() -> Counter[tuple[str, str]]:
    """torch's counters, flat."""
    counters = torch._dynamo.utils.counters
    return Counter({(group, str(key)): count for group, counted in counters.items() for key, count in counted.items()})
