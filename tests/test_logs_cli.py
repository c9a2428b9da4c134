"""``capturelint logs`` as users and CI jobs run it."""

from __future__ import annotations

import gzip
import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from capturelint.catalog import data_directory
from capturelint.cli import main
from capturelint.logs.environment import telling

FIXTURES = data_directory("fixtures") / "logs"
SKIP = """\
skipping cudagraphs due to mutated inputs (1 instances). Found from :
   File "%s", line 7, in put
    x.add_(1)
"""


@dataclass
class Result:
    returncode: int
    stdout: bytes
    stderr: bytes


@pytest.fixture
def run(tmp_path, monkeypatch, capfdbinary):
    """Run ``capturelint logs`` in ``tmp_path``, in this process."""

    def run_here(*arguments: str | Path) -> Result:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["capturelint", "logs", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(ended.value.code or 0, *capfdbinary.readouterr())

    return run_here


def run_apart(
    *arguments: str | Path, cwd: Path, stdin: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "capturelint", "logs", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, input=stdin, capture_output=True, check=False, env={**os.environ, **variables}
    )


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "ci.log"
    path.write_text(SKIP % "/srv/app/kv.py", encoding="utf-8")
    return path


def test_a_skip_exits_one_and_is_told_with_its_line(run, log):
    result = run("ci.log")

    assert (result.returncode, result.stderr) == (1, b"")
    assert result.stdout.startswith(b"ci.log:1 skip mutated inputs (1 instances)\n  = at /srv/app/kv.py:7\n")
    assert result.stdout.endswith(b"1 finding in 1 log (3 lines): 1 skip\n")


def test_a_clean_log_claims_no_more_than_it_shows(run, tmp_path):
    (tmp_path / "ci.log").write_text("step 1\n", encoding="utf-8")
    result = run("ci.log")

    assert result.returncode == 0
    assert result.stdout.endswith(b"no skip message found in 1 log (1 line)\n")
    assert b"captured" not in result.stdout


def test_json_has_the_fields_of_the_contract(run, log):
    report = json.loads(run("ci.log", "--format", "json").stdout)

    assert report["schema"] == 1
    assert report["findings"] == [
        {
            "id": "ind-skip-mutated-inputs",
            "rule": "cudagraph-skip",
            "severity": "skip",
            "path": "ci.log",
            "line": 1,
            "reason": "mutated inputs (1 instances)",
            "location": "/srv/app/kv.py:7",
            "location_certain": True,
            "count": 1,
            "ranks": [],
        }
    ]


def test_a_github_annotation_points_at_the_users_line(run, tmp_path):
    (tmp_path / "ci.log").write_text(SKIP % (tmp_path / "model.py"), encoding="utf-8")
    result = run("ci.log", "--format", "github")

    assert result.stdout.startswith(b"::error title=capturelint (cudagraph-skip),file=model.py,line=7::skip: mutated")


def test_fail_on_chooses_what_fails(run):
    graph_break = FIXTURES / "dynamo26-graph-break.log"

    assert run(graph_break).returncode == 0
    assert run(graph_break, "--fail-on", "graph-break").returncode == 1
    assert run(FIXTURES / "vllm011-enforce-eager.log", "--fail-on", "none").returncode == 0


def test_an_unknown_severity_is_answered_with_the_nearest(run, log):
    result = run("ci.log", "--fail-on", "skp")

    assert (result.returncode, result.stderr) == (
        2,
        b"error: --fail-on skp: unknown severity 'skp'; did you mean 'skip'?\n",
    )


def test_what_cannot_be_read_is_named_and_the_rest_is_read(run, log, tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(log.read_bytes() * 99)[:-9])
    (tmp_path / "core").write_bytes(b"\x7fELF\0\0")
    result = run("missing.log", "cut.gz", ".", "core", "ci.log", "--format", "concise")

    assert result.returncode == 2
    assert result.stderr.decode().splitlines() == [
        "error: missing.log: No such file or directory",
        "error: cut.gz: the gzip file is cut off",
        "error: .: Is a directory",
        "error: core: a binary file, not a log",
    ]
    assert b"1 finding in 1 log (3 lines): 1 skip, 4 logs not read" in result.stdout


def test_stdin_is_read(log, tmp_path):
    result = run_apart("-", "--format", "concise", "--quiet", cwd=tmp_path, stdin=log.read_bytes())

    assert result.stdout == b"-:1: skip [ind-skip-mutated-inputs] mutated inputs (1 instances) at /srv/app/kv.py:7\n"


def test_ranks_that_say_the_same_are_one_message_in_text_and_two_in_json(run):
    path = FIXTURES / "torch28-rank-interleaved.log"

    assert b"torch.cond (2 times, ranks 0, 1)\n" in run(path).stdout
    assert len(json.loads(run(path, "--format", "json").stdout)["findings"]) == 2


def test_junit_and_sarif_are_well_formed(run, log, tmp_path):
    run("ci.log", "--format", "junit", "-o", "out.xml")
    sarif = json.loads(run("ci.log", "--format", "sarif").stdout)

    assert ElementTree.parse(tmp_path / "out.xml").getroot().get("failures") == "1"
    assert [result["ruleId"] for result in sarif["runs"][0]["results"]] == ["cudagraph-skip"]


def test_messages_can_be_ignored_by_id_or_rule(run, log):
    assert run("ci.log", "--ignore", "cudagraph-skip").returncode == 0
    assert run("ci.log", "--ignore", "ind-skip-mutated-inputs").returncode == 0
    assert run("ci.log", "--select", "graph-break").returncode == 0


PROGRAM = """
import os, sys
print("working", flush=True)
print(os.environ["TORCH_LOGS"], flush=True)
print(%r, end="", file=sys.stderr)
sys.exit(%d)
"""


@pytest.mark.parametrize(("code", "text", "expected"), [(0, SKIP % "m.py", 1), (0, "fine\n", 0), (7, SKIP % "m.py", 7)])
def test_a_command_is_shown_judged_and_keeps_its_exit_code(tmp_path, code, text, expected):
    result = run_apart("--", sys.executable, "-c", PROGRAM % (text, code), cwd=tmp_path)

    assert result.returncode == expected
    assert result.stdout.startswith(b"working\ngraph_breaks,recompiles,cudagraphs,perf_hints\n")
    assert result.stderr == text.encode()


def test_a_command_leaves_stdout_to_a_machine_readable_report(tmp_path):
    result = run_apart("--format", "json", "--", sys.executable, "-c", "print('hello')", cwd=tmp_path)

    assert json.loads(result.stdout)["findings"] == []
    assert result.stderr == b"hello\n"


LASTING = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))
print("skipping cudagraphs due to bisector", flush=True)
time.sleep(60)
"""


def test_a_command_is_shown_as_it_prints_and_ended_with_the_job(tmp_path):
    command = [sys.executable, "-m", "capturelint", "logs", "--format", "concise", "--", sys.executable, "-c", LASTING]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr.readline() == b"skipping cudagraphs due to bisector\n"  # while the command still runs
        process.terminate()
        stdout, _ = process.communicate()

    assert process.returncode == 3
    assert stdout.startswith(b"output:1: skip [ind-skip-bisector] bisector\n")


def test_a_terminal_shows_a_progress_bar(log, tmp_path):
    pty = pytest.importorskip("pty", reason="a terminal is made by the operating system")
    terminal, its_end = pty.openpty()
    command = [sys.executable, "-m", "capturelint", "logs", "ci.log"]
    subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=its_end, check=False)
    ready, _, _ = select.select([terminal], [], [], 0)
    shown = os.read(terminal, 65536) if ready else b""
    os.close(its_end)
    os.close(terminal)

    assert b"reading" in shown


def test_a_command_that_does_not_exist_is_a_usage_error(tmp_path):
    result = run_apart("--", "no-such-command-here", cwd=tmp_path)

    assert (result.returncode, result.stderr) == (2, b"error: cannot run 'no-such-command-here': no such command\n")


def test_the_users_torch_logs_stay_and_an_empty_one_does_not():
    assert telling({"TORCH_LOGS": "+dynamo,graph_breaks"})["TORCH_LOGS"] == (
        "+dynamo,graph_breaks,recompiles,cudagraphs,perf_hints"
    )
    assert telling({"TORCH_LOGS": ""})["TORCH_LOGS"] == "graph_breaks,recompiles,cudagraphs,perf_hints"
    assert telling({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"})["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] == "0"
