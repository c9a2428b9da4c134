"""Files over several processes: each forked worker inherits the index and sends back what files gave.

Where a process cannot fork (Windows) or the work is small, everything is done in this one. A worker that dies, for
want of memory or by a fault of the interpreter itself, costs the file that it died on and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

from capturelint.errors import SourceError
from capturelint.static.analyse import Analysed

BATCH_NBYTES = 100_000
"""Small files travel together: a message costs as much as the syntax of fifty lines."""
Analyse = Callable[[Path], Analysed]
INHERITED: dict[str, Analyse] = {}
"""What forked workers find: the function of the one check that is running."""


def can_fork() -> bool:
    """Whether workers can inherit what this process has."""
    return "fork" in multiprocessing.get_all_start_methods()


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(analyse: Analyse, files: Sequence[tuple[Path, int]], jobs: int) -> Iterator[Analysed]:
    """What each file gives, in no order; ``files`` have their sizes in bytes, and the large ones are begun first."""
    INHERITED["analyse"] = analyse
    try:
        finished: set[Path] = set()
        for found in in_pool(list(batches(files)), jobs):
            finished.add(found.path)
            yield found
        for path, _ in files:
            if path not in finished:
                yield alone(path)
    finally:
        INHERITED.clear()


def batches(files: Iterable[tuple[Path, int]]) -> Iterator[list[Path]]:
    """Files in groups of about the same size, largest first."""
    group: list[Path] = []
    nbytes = 0
    for path, size in sorted(files, key=lambda each: (-each[1], each[0])):
        group.append(path)
        nbytes += size
        if nbytes >= BATCH_NBYTES:
            yield group
            group, nbytes = [], 0
    if group:
        yield group


def in_pool(groups: Sequence[list[Path]], jobs: int) -> Iterator[Analysed]:
    """What the files of all groups give; those of groups that a dying worker took with it are missing."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=end_on_interrupt) as pool:
        pending: list[Future[list[Analysed]]] = []
        with suppress(BrokenProcessPool):
            pending += (pool.submit(analyse_inherited, group) for group in groups)
        for future in as_completed(pending):
            try:
                yield from future.result()
            except BrokenProcessPool:
                continue


def end_on_interrupt() -> None:
    """Let Ctrl-C end a worker at once and without a traceback; the first process says what there is to say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def alone(path: Path) -> Analysed:
    """What a file gives in a process of its own, which may die of it."""
    return next(
        in_pool([[path]], 1), Analysed(path, errors=(SourceError(path, None, "the analysis of this file crashed"),))
    )


def analyse_inherited(group: Sequence[Path]) -> list[Analysed]:
    """Analyse some files in a worker."""
    return [INHERITED["analyse"](path) for path in group]
