"""Several workers find what one finds, in the same order, and a worker that dies costs one file."""

import os
from pathlib import Path

from capturelint.static.analyse import Analyser
from capturelint.static.check import Options, check
from capturelint.static.files import Sources
from capturelint.static.index import Index
from capturelint.static.parallel import Analysed, batches, spread

STEP = """import torch


def decode_step(model, x: torch.Tensor, n: int):
    if x.sum() > {number}:
        return x.item()
    return x[:{number}]
"""
NUM_FILES = 11


def test_findings_do_not_depend_on_the_number_of_workers(tmp_path: Path):
    for number in range(NUM_FILES):
        (tmp_path / f"model_{number}.py").write_text(STEP.format(number=number))
    reports = [check([tmp_path], Options(root=tmp_path, jobs=jobs)) for jobs in (1, 2, 3)]
    assert len(reports[0].findings) >= 2 * NUM_FILES
    assert reports[0].findings == reports[1].findings == reports[2].findings
    assert reports[0].events == reports[1].events == reports[2].events
    assert reports[0].entries == reports[1].entries == reports[2].entries


def test_large_files_come_first_and_small_ones_together():
    sizes = [(Path("a.py"), 10), (Path("b.py"), 300_000), (Path("c.py"), 20)]
    assert list(batches(sizes)) == [[Path("b.py")], [Path("c.py"), Path("a.py")]]


def test_a_worker_that_dies_costs_the_file_it_died_on():
    def analyse(path: Path) -> Analysed:
        if path.name == "deadly.py":
            os._exit(1)
        return Analysed(path)

    files = [(Path(name), 300_000) for name in ("a.py", "b.py", "deadly.py", "d.py")]
    found = {one.path.name: [error.reason for error in one.errors] for one in spread(analyse, files, 2)}
    assert found == {"a.py": [], "b.py": [], "d.py": [], "deadly.py": ["the analysis of this file crashed"]}


def test_a_fault_of_the_analyser_costs_the_file_it_shows_on(tmp_path: Path):
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(STEP.format(number=1))
    sources = Sources()
    analyser = Analyser(Index(sources.text), Options(sources=sources))

    def faulty(path: Path) -> str:
        return sources.text(path) if path.stem == "second" else sources[path]

    analyser.index.read = faulty
    first, second = (analyser.analyse(tmp_path / f"{name}.py") for name in ("first", "second"))
    [error] = first.errors
    assert str(error).startswith(f"{tmp_path}/first.py: the analyser failed at test_check_parallel.py:")
    assert str(error).endswith("TypeError: 'Sources' object is not subscriptable; please report this")
    assert not first.complete
    assert [run.entry.name for run in second.ran] == ["decode_step"]
