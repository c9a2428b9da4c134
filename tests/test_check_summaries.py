"""Calls that are looked up find what calls that are run find, and end what would take forever."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from capturelint.report.page import read_blocks
from capturelint.static import summaries
from capturelint.static.check import Options, check

PAGES = sorted((Path(__file__).parents[1] / "fixtures" / "rules").glob("*.md"))

START = """
import torch
from torch import nn


class Rows:
    def __init__(self, scale):
        self.number, self.scale = 4, scale


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(8, 8)
        self.first = True
        self.calls = 0
        self.register_buffer("rows", torch.zeros(4, 8))
        self.held = []
"""
END = """

def build(device):
    return Model().to(device)


def inputs(batch, step, device):
    return {"x": torch.zeros(batch, 8, device=device)}


def step(model, x):
    return model.decode(x)
"""
PROGRAMS = {
    "reads what is written between the calls": """
    def part(self, x):
        return self.w(x).item() if self.first else self.w(x)

    def decode(self, x):
        y = x * 2
        self.first = False
        self.part(y)
        self.part(x * 3)
        self.first = True
        return self.part(y)
""",
    "makes a list of its own in each call": """
    def part(self, x):
        return [x * 2]

    def decode(self, x):
        one, two = self.part(x * 2), self.part(x * 3)
        one.append(x)
        for row in two:
            x = x + row
        return x[len(two) :], x[len(one) :]
""",
    "writes what it is given": """
    def part(self, x, n):
        x.add_(n)
        return x[0]

    def decode(self, x):
        y = x * 2
        z = y * 2
        self.part(y, 1)
        self.part(z, 1)
        return y[:1], self.part(y * 2, 1).item()
""",
    "counts": """
    def part(self, x):
        self.calls += 1
        return x * self.calls

    def decode(self, x):
        return self.part(x) + self.part(x)
""",
    "fills a buffer": """
    def part(self, x):
        self.rows.copy_(x)
        return self.rows[0]

    def decode(self, x):
        return self.part(x * 2), self.part(x * 3)
""",
    "grows what the model holds": """
    def part(self, x):
        self.held.append(x * 2)
        return torch.stack(self.held)

    def decode(self, x):
        return self.part(x), self.part(x)
""",
    "closes over a name of its own": """
    def part(self, x):
        n = x.sum()
        return lambda y: y * n.item()

    def decode(self, x):
        return self.part(x)(x) + self.part(x * 2)(x)
""",
    "gives a number out of what closes over a name of its own": """
    def part(self, x):
        return Rows(lambda y: y * x.item()).number

    def decode(self, x):
        return x * self.part(x * 2) + x * self.part(x * 3)
""",
    "is given one tensor twice, then two": """
    def part(self, x, y):
        if x is y:
            return x
        return y.item()

    def decode(self, x):
        y = x * 2
        return self.part(y, y), self.part(y, x * 3), self.part(y, y)
""",
    "knows 1 from True": """
    def part(self, x, n):
        return x.item() if n is True else x

    def decode(self, x):
        return self.part(x, 1), self.part(x, True), self.part(x, 1)
""",
    "is called under a condition and without it": """
    def part(self, x):
        return x.item()

    def decode(self, x, flag=None):
        if flag:
            self.part(x)
        if flag == 2:
            return self.part(x)
        return self.part(x)
""",
}
LOOKED_UP = {
    "reads what is written between the calls",
    "makes a list of its own in each call",
    "fills a buffer",
    "is given one tensor twice, then two",
    "knows 1 from True",
}
"""Those in which some call is like one before; in the others each finds, does or is given something else."""


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[summaries.Summary]]:
    """Every call that can be looked up is, and noted."""
    used: list[summaries.Summary] = []
    apply = summaries.Summary.apply

    def noted(self: summaries.Summary, *args: object) -> object:
        used.append(self)
        return apply(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(summaries, "OFTEN", 0)
    monkeypatch.setattr(summaries, "SMALL", 0)
    monkeypatch.setattr(summaries, "PATIENCE", 1_000_000)
    monkeypatch.setattr(summaries.Summary, "apply", noted)
    return used


def found(path: Path) -> list[object]:
    findings = check([path], Options(root=path.parent)).findings
    return [(each.rule, each.place, each.message, each.confidence, each.trail) for each in findings]


def without(path: Path) -> list[object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summaries, "PATIENCE", 0)
        return found(path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_that_is_looked_up_finds_what_one_that_is_run_finds(
    name: str, tmp_path: Path, looked_up: list[summaries.Summary]
) -> None:
    path = tmp_path / "model.py"
    path.write_text(START + PROGRAMS[name] + END)
    assert found(path) == without(path)
    assert bool(looked_up) is (name in LOOKED_UP)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_summaries_change_no_finding_of_the_fixtures(
    page: Path, tmp_path: Path, looked_up: list[summaries.Summary]
) -> None:
    path = tmp_path / "block.py"
    for block in read_blocks(page):
        path.write_text(block.code)
        assert found(path) == without(path), block.title


TREE = """
    def part{n}(self, x):
        y = self.part{m}(x)
        return y + self.part{m}(x * 2)
"""
DRIVER = """

def main():
    model = Model().cuda()
    x = torch.zeros(1, 8, device="cuda")
    model.decode(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model.decode(x)
    graph.replay()
"""


@pytest.mark.parametrize("end", [END, DRIVER], ids=["protocol", "driver"])
def test_a_tree_of_calls_is_read_to_its_end(end: str, tmp_path: Path) -> None:
    parts = "".join(TREE.format(n=n, m=n - 1) for n in range(1, 40))
    path = tmp_path / "model.py"
    leaf = "\n    def part0(self, x):\n        return self.w(x)\n"
    read = "\n    def decode(self, x):\n        return self.part39(x).item()\n"
    path.write_text(START + leaf + parts + read + end)
    checked = check([path], Options(root=tmp_path))
    assert [each.rule for each in checked.findings] == ["host-sync"]
    assert not checked.notes
