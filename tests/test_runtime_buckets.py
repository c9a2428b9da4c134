import pytest

torch = pytest.importorskip("torch")

from capturelint import emulator  # noqa: E402
from capturelint.errors import UsageError  # noqa: E402
from capturelint.runtime.buckets import BucketedStep  # noqa: E402


@pytest.fixture
def emulated():
    with emulator.cuda():
        yield


def make_inputs(size):
    return {"x": torch.full((size, 2), 100.0, device="cuda"), "scale": torch.ones(2, device="cuda")}


class Model:
    """Doubles its input and remembers the last one of every row."""

    def __init__(self, rows=8):
        self.last = torch.zeros(rows, 2, device="cuda")
        self.calls = 0

    def step(self, x, scale):
        self.calls += 1
        self.last[: x.shape[0]].copy_(x)
        return x * 2 * scale


def bucketed(sizes=(1, 2, 4)):
    model = Model()
    return model, BucketedStep(model.step, make_inputs, sizes)


def rows(count, start=0.0):
    return torch.arange(start, start + 2 * count, device="cuda").view(count, 2)


def call(run, count, start=0.0, scale=1.0):
    return run(x=rows(count, start), scale=torch.full((2,), scale, device="cuda"))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_live_batch_gets_its_rows_and_no_padding(emulated, count):
    _, run = bucketed()
    assert call(run, count, scale=3.0).tolist() == (rows(count) * 6).tolist()


def test_the_smallest_bucket_that_fits_is_replayed_and_counted(emulated):
    model, run = bucketed()
    captured = model.calls
    for count in (1, 3, 3, 4):
        call(run, count)
    assert model.calls == captured
    assert {size: (each.hits, each.padding) for size, each in run.counts.items()} == {1: (1, 0), 2: (0, 0), 4: (3, 2)}


def test_the_graphs_share_one_pool(emulated):
    _, run = bucketed()
    assert len({bucket.graph.pool() for bucket in run.buckets.values()}) == 1


def test_padding_comes_back_after_a_larger_batch(emulated):
    model, run = bucketed()
    call(run, 4)
    call(run, 3)
    assert model.last[3].tolist() == [100.0, 100.0]
    assert model.last[:3].tolist() == rows(3).tolist()


def test_a_batch_above_the_largest_bucket_runs_eagerly_and_says_so_once(emulated, caplog):
    model, run = bucketed()
    before = model.calls
    assert call(run, 5).tolist() == (rows(5) * 2).tolist()
    call(run, 6)
    assert (model.calls - before, run.fallbacks) == (2, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "batch 5 is above the largest bucket, 4: it runs eagerly"
    ]


def test_tuples_and_dictionaries_lose_their_padding_too(emulated):
    run = BucketedStep(lambda x, scale: {"y": (x, scale)}, make_inputs, (4,))
    found = call(run, 2)
    assert (found["y"][0].shape, found["y"][1].shape) == ((2, 2), (2,))


def test_an_output_is_overwritten_by_the_next_call(emulated):
    _, run = bucketed()
    held = call(run, 2)
    call(run, 2, start=10.0)
    assert held.tolist() == (rows(2, 10.0) * 2).tolist()


def test_buckets_start_at_1():
    with pytest.raises(UsageError, match="at least one batch size from 1"):
        BucketedStep(print, make_inputs, (0, 2))
