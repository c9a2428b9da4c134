"""Entries over several processes: each forked worker inherits the parsed index and sends back events.

Where a process cannot fork (Windows) or the work is small, everything runs in this one. The outcomes come in the order
of the entries whatever the number of workers, so a report never depends on it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from capturelint.static.regions import Entry
from capturelint.static.roots import Outcome, Stage, run_entry

MIN_ENTRIES = 8
"""Fewer are done before workers have started."""
INHERITED: dict[str, object] = {}
"""What forked workers find: the stage and the entries of the one check that is running."""


def run_entries(stage: Stage, entries: Sequence[Entry], jobs: int = 1) -> list[Outcome]:
    """The outcome of each entry, in their order; ``jobs`` 0 is one worker for each core that this process may use.

    Workers do not send back the functions that an entry reached: those are for ``facts``, which runs alone.
    """
    wanted = jobs or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else jobs or os.cpu_count() or 1
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    if wanted < 2 or len(entries) < MIN_ENTRIES or not can_fork:
        return [run_entry(stage, entry) for entry in entries]
    INHERITED.update(stage=stage, entries=entries)
    try:
        with ProcessPoolExecutor(wanted, mp_context=multiprocessing.get_context("fork")) as pool:
            return list(pool.map(run_inherited, range(len(entries)), chunksize=2))
    finally:
        INHERITED.clear()


def run_inherited(at: int) -> Outcome:
    """Run one entry in a worker."""
    stage, entries = INHERITED["stage"], INHERITED["entries"]
    assert isinstance(stage, Stage)
    assert isinstance(entries, Sequence)
    return replace(run_entry(stage, entries[at]), reached=[])
