"""Several workers find what one finds, in the same order."""

from pathlib import Path

from capturelint.static.check import Options, check
from capturelint.static.parallel import MIN_ENTRIES

STEP = """import torch


def decode_step(model, x: torch.Tensor, n: int):
    if x.sum() > {number}:
        return x.item()
    return x[:{number}]
"""


def test_findings_do_not_depend_on_the_number_of_workers(tmp_path: Path):
    for number in range(MIN_ENTRIES + 3):
        (tmp_path / f"model_{number}.py").write_text(STEP.format(number=number))
    reports = [check([tmp_path], Options(root=tmp_path, jobs=jobs)) for jobs in (1, 2, 3)]
    assert len(reports[0].findings) >= 2 * (MIN_ENTRIES + 3)
    assert reports[0].findings == reports[1].findings == reports[2].findings
    assert reports[0].events == reports[1].events == reports[2].events
