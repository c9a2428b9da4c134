"""What the profiler's record of eager steps is made into, and the bytes that a step reads."""

import pytest

torch = pytest.importorskip("torch")

from capturelint import emulator  # noqa: E402
from capturelint.compiler.coverage import device_work  # noqa: E402
from capturelint.runtime.profile import Activity, Work, activity_of  # noqa: E402
from capturelint.runtime.project import Project  # noqa: E402
from capturelint.runtime.timeline import Stretch, timeline_of  # noqa: E402
from capturelint.runtime.trace import Recorder  # noqa: E402

MS = 1_000_000


def test_kernels_are_counted_a_step_and_copies_are_none():
    work = [Work("gemm", 0, MS), Work("Memcpy HtoD", MS, MS), Work("gemm", 4 * MS, MS)]
    assert activity_of(work, 2) == Activity(kernels=1, busy_ms=1.5)


def test_kernels_that_overlap_keep_the_gpu_busy_once():
    work = [Work("a", 0, 4 * MS), Work("b", MS, MS), Work("c", 3 * MS, 3 * MS)]
    assert activity_of(work, 1) == Activity(kernels=3, busy_ms=6.0)


def test_without_a_kernel_nothing_was_measured():
    assert activity_of([], 3) is None
    assert activity_of([Work("Memset", 0, 5)], 3) is None


def nbytes_read(step):
    """Bytes that ``step`` reads of memory from before it."""
    recorder = Recorder(Project(()))
    with torch.no_grad(), recorder:
        step()
    return sum(recorder.reads.values())


@pytest.fixture
def device():
    with emulator.cuda():
        yield "cuda"


def test_a_weight_is_read_once_however_often_it_is_used(device):
    weight, x = torch.ones(8, 8, device=device), torch.ones(2, 8, device=device)
    assert nbytes_read(lambda: x @ weight @ weight) == (8 * 8 + 2 * 8) * 4


def test_a_table_is_read_where_it_is_gathered_from(device):
    table, ids = torch.ones(1000, 4, device=device), torch.tensor([1, 2], device=device)
    assert nbytes_read(lambda: torch.nn.functional.embedding(ids, table)) == 2 * 4 * 4 + 2 * 8


def test_what_the_step_makes_or_overwrites_is_not_read(device):
    cache, row = torch.zeros(16, 4, device=device), torch.ones(4, device=device)
    assert nbytes_read(lambda: cache[3].copy_(row * 2)) == 4 * 4


def test_an_operator_of_higher_order_is_a_call_like_any_other():
    branch = torch.ops.higher_order.cond
    with Recorder(Project(())) as recorder:
        (out,) = branch(torch.tensor(True), lambda x: (x + 1,), lambda x: (x,), (torch.ones(1),))
    assert (out.item(), recorder.calls[-1].short) == (2.0, "cond")


def test_a_timeline_is_the_share_of_each_interval_in_which_something_runs():
    line = timeline_of([Stretch(100, 150, False), Stretch(120, 150, False), Stretch(175, 200, True)])
    assert (line.us, line.kernels, len(line.outside), len(line.in_graphs)) == (100, 3, 100, 100)
    assert (line.outside[:50], set(line.outside[50:])) == ((1.0,) * 50, {0.0})
    assert (set(line.in_graphs[:75]), line.in_graphs[75:]) == ({0.0}, (1.0,) * 25)
    assert line.busy == pytest.approx((25, 50))


def test_a_kernel_of_half_an_interval_fills_half_of_it():
    line = timeline_of([Stretch(0, 0.5, True), Stretch(99.5, 100, True)], kernels=7)
    assert (line.in_graphs[0], line.in_graphs[-1], sum(line.in_graphs), line.kernels) == (0.5, 0.5, 1.0, 7)
    assert timeline_of([]) is None


def test_a_trace_tells_what_a_graph_launched():
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0, "args": {"correlation": 7}}
    other = {**launch, "name": "cudaMemcpyAsync", "args": {"correlation": 8}}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10, "dur": 5, "args": {"correlation": 7}}
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 2, "dur": 1, "args": {"correlation": 8}}
    assert list(device_work([launch, other, copy, kernel])) == [(2, 3, False), (10, 15, True)]
