"""The pages of the HTML report that tests look at: a finding and a suspicion, measured, emulated and clean."""

from dataclasses import replace
from pathlib import Path

from capturelint.compiler.report import CompiledBucket, CompileReport, Coverage, Milliseconds, Span
from capturelint.finding import Evidence, Finding
from capturelint.place import Frame, Place
from capturelint.report import CheckReport, EntryRecord
from capturelint.report.html import check_html, verify_html
from capturelint.runtime.observations import BucketResult, Floor, Machine, Times
from capturelint.runtime.timeline import Operations, Stretch, timeline_of
from capturelint.runtime.verify import VerifyReport
from capturelint.vocabulary import Confidence, Outcome, Verdict

SOURCE = (
    "def step(state, token):",
    "    token = state.model(token)",
    "    if token.item() == 2 and '<b>':",
    "        return None",
    "",
    "def other():",
    "    step(1, 2)",
)
FINDING = Finding(
    rule="host-sync",
    place=Place(Path("model.py"), 3, 8, 3, 20),
    message="`token.item()` waits for the device",
    help=("compare on the device",),
    outcome=Outcome.CAPTURE_ERROR,
    confidence=Confidence.CERTAIN,
    trail=(Frame(Path("model.py"), 7, "other"),),
    evidence=Evidence("3 differs from 4 & 5"),
)
SUSPECTED = replace(FINDING, rule="upload", place=Place(Path("model.py"), 2, 5, 2, 10), confidence=Confidence.LIKELY)
CHECK = CheckReport("0.1.0", None, 2, (EntryRecord(Path("model.py"), 1, "step", "plain protocol"),), (FINDING,))
COVERAGE = Coverage(120, 123, 2, timeline=(Span(0, 80, 100, True), Span(90, 95, 3, False), Span(100, 120, 20, True)))
COMPILED = CompileReport(
    "cuda", "2.11.0", buckets=(CompiledBucket(2, 4, COVERAGE, Milliseconds(2.5, 2.6), Milliseconds(2.2, 2.3)),)
)
EAGER_LINE = timeline_of([Stretch(at, at + 3, False) for at in range(0, 900, 9)])
REPLAY_LINE = timeline_of([Stretch(0, 2, False), Stretch(10, 90, True), Stretch(95, 150, True)])
OPERATIONS = (
    Operations("the inputs", 2, in_graph=False),
    Operations("Decoder.forward", 3),
    Operations("Attention.forward", 12),
    Operations("Decoder.forward", 2),
)
MEASURED = VerifyReport(
    target="model.py",
    machine=Machine("cuda", "2.11.0+cu130", "NVIDIA H200", "580.159.04"),
    buckets=(
        BucketResult(
            1, Verdict.OK, 8, 0.0, 0.0, 0.001, eager_ms=Times(26.0, 27.9), replay_ms=Times(4.6, 4.7), pool_bytes=10**6,
            step_errors=(0.0, 0.0), first_step=3,
        ),
        BucketResult(
            2, Verdict.REPLAY_DIFFERS, 8, 0.5, 0.0, 0.001, "differs", eager_ms=Times(26, 28), replay_ms=Times(5, 6),
            pool_bytes=0, step_errors=(0.0, 0.5, float("inf")), first_step=3,
            eager_timeline=EAGER_LINE, replay_timeline=REPLAY_LINE,
        ),
    ),
    findings=(FINDING, SUSPECTED),
    floor=Floor(1_192_099_840, 4.1e12),
    compiled=COMPILED,
)  # fmt: skip
EMULATED = VerifyReport(
    "model.py",
    Machine("emulated", "2.13.0"),
    (BucketResult(1, Verdict.OK, 8, 0.0, 0.0, 0.001, operations=OPERATIONS),),
    findings=(),
)


def read(path: Path, cell: int | None) -> tuple[str, ...]:
    return SOURCE


PAGES = {
    "check": check_html(CHECK, read, ["capturelint", "check", "."]),
    "clean": check_html(replace(CHECK, findings=()), read, []),
    "measured": verify_html(MEASURED, read, ["capturelint", "verify", "my model.py"], "0.1.0"),
    "emulated": verify_html(EMULATED, read, [], "0.1.0"),
}
