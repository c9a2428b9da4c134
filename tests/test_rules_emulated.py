"""Blocks of fixtures/rules marked ``py run`` are captured and replayed: the run-time half blames the marked line too.

All blocks share one process that loads torch once and forks for each of them, as a refused capture leaves its process
unfit. Run as a program, this file is that process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_rules_fixtures import CASES, Case

RUNS = tuple(case for case in CASES if case.block.runs)
BUCKET, STEPS, WARM_UP = 2, 8, 3


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, dict]:
    """What the emulated machine says of each block."""
    directory = tmp_path_factory.mktemp("blocks")
    paths = []
    for number, case in enumerate(RUNS):
        paths.append(directory / f"block_{number}.py")
        paths[-1].write_text(case.block.code)
    ended = subprocess.run(
        [sys.executable, __file__, *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    return {case.id: json.loads(line) for case, line in zip(RUNS, lines, strict=True)}


def expected(case: Case) -> list[list[object]]:
    """Line and rule of every mark, missed ones too: the run-time half does not miss them."""
    marks = [*case.marks("error").items(), *case.marks("missed").items()]
    return sorted([line, rule] for line, rules in marks for rule in rules)


@pytest.mark.parametrize("case", RUNS, ids=lambda case: case.id)
def test_capture_and_replay_blame_the_marked_line(case, answers):
    answer = answers[case.id]
    assert answer["blamed"] == expected(case), answer
    assert (answer["verdict"] == "ok") == (not expected(case)), answer


def test_a_run_has_one_hazard():
    """A refused capture stops at the first, so a second would go unseen."""
    assert [case.id for case in RUNS if len(expected(case)) > 1] == []


def emulated(path: Path) -> dict[str, object]:
    """Verdict, message and blamed lines of one target, from a fork of this process."""
    from capturelint import emulator
    from capturelint.runtime.blame import Suspects
    from capturelint.runtime.channel import Channel
    from capturelint.runtime.machine import find
    from capturelint.runtime.observations import Machine
    from capturelint.runtime.protocol import Plan, decode
    from capturelint.runtime.service import run_plan
    from capturelint.runtime.verify import Ledger, Limits, note, report_of, retrace
    from capturelint.vocabulary import Confidence

    plan = Plan(str(path), "emulated", (BUCKET,), STEPS, WARM_UP, max_length=16)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        machine = find("emulated")
        assert isinstance(machine, Machine)
        with open(os.devnull, "w") as silent, emulator.cuda():
            os.dup2(silent.fileno(), 1)
            run_plan(plan, machine, Channel(send))
        os._exit(0)
    os.close(send)
    ledger = Ledger(plan)
    with open(receive, "rb") as messages:
        for message in filter(None, map(decode, messages)):
            note(ledger, message, lambda progress: None)
    os.waitpid(child, 0)
    if not ledger.results:
        return {"verdict": "no result", "blamed": [], "message": str(ledger.fault)}
    retrace(ledger, Limits(60.0, None), lambda progress: None)
    report = report_of(ledger, Suspects())
    # Rows that depend on each other are said and not proven to be a fault.
    proven = [finding for finding in report.findings if finding.confidence is Confidence.PROVEN]
    blamed = sorted([finding.place.line if finding.place else 0, finding.rule] for finding in proven)
    [bucket] = report.buckets
    return {"verdict": bucket.verdict.value, "blamed": blamed, "message": bucket.message}


if __name__ == "__main__":
    import torch  # noqa: F401 - loaded once, before the forks

    for each in sys.argv[1:]:
        print(json.dumps(emulated(Path(each))), flush=True)
