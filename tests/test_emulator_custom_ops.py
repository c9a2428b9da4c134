"""Operations that are not torch's own: run by what they bring for a CPU or for shapes, or named in one message."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from capturelint.emulator import CaptureRefused, EmulationError, cuda
from capturelint.emulator.stores import stored_parameters
from capturelint.runtime.project import Project
from capturelint.runtime.trace import Recorder

tl: Any = ModuleType("triton.language")


@pytest.fixture(autouse=True)
def device():
    with cuda() as machine, torch.no_grad():
        yield machine


@pytest.fixture
def library():
    made = torch.library.Library("capturelint_custom", "DEF")
    yield made
    made._destroy()


def captured(step):
    """A graph of ``step``, and what it returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    return graph, out


def doubled_after(step, x):
    """What replaying a captured ``step`` gives for another input."""
    graph, out = captured(lambda: step(x))
    x.fill_(5)
    graph.replay()
    return out.tolist()


def test_a_python_operation_is_captured_call_by_call():
    @torch.library.custom_op("capturelint_custom::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return x * 2

    assert doubled_after(doubled, torch.ones(2, device="cuda")) == [10.0, 10.0]


def test_a_python_operation_is_refused_where_its_body_is():
    @torch.library.custom_op("capturelint_custom::peeks", mutates_args=())
    def peeks(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    with pytest.raises(RuntimeError, match="previous error"):
        captured(lambda: peeks(torch.ones(2, device="cuda")))


def test_the_version_for_a_cpu_is_run_on_cpu_tensors(library):
    library.define("doubled_on_cpu(Tensor x) -> Tensor")
    seen = []

    def doubled(x):
        seen.append(x.device.type)
        return torch.empty(x.shape, device=x.device).copy_(x).mul_(2)

    library.impl("doubled_on_cpu", doubled, "CPU")
    operation = torch.ops.capturelint_custom.doubled_on_cpu
    assert operation(torch.ones(2, device="cuda")).device.type == "cuda"
    assert doubled_after(operation, torch.ones(2, device="cuda")) == [10.0, 10.0]
    assert set(seen) == {"cpu"}


def test_an_operation_that_writes_its_argument_is_replayed(library):
    library.define("add_one_(Tensor(a!) x) -> ()")

    def add_one(x):
        x.add_(1)

    library.impl("add_one_", add_one, "CPU")
    x = torch.zeros(2, device="cuda")
    graph, _ = captured(lambda: torch.ops.capturelint_custom.add_one_(x))
    assert x.tolist() == [0.0, 0.0]
    graph.replay()
    graph.replay()
    assert x.tolist() == [2.0, 2.0]


def test_a_fake_implementation_gives_shapes_and_says_so(library):
    library.define("only_shapes(Tensor x) -> Tensor")
    torch.library.register_fake("capturelint_custom::only_shapes", lambda x: x.new_empty(x.shape[0], 7), lib=library)
    x = torch.ones(2, 3, device="cuda")
    with pytest.warns(UserWarning, match=r"capturelint_custom::only_shapes\.default has no CPU implementation"):
        graph, made = captured(lambda: torch.ops.capturelint_custom.only_shapes(x))
    with pytest.warns(UserWarning, match="its results are zeros of the right shape"):
        graph.replay()
    assert (made.shape, made.device.type, made.sum().item()) == ((2, 7), "cuda", 0.0)


def test_an_operator_without_any_implementation_is_named(library):
    library.define("absent(Tensor x) -> Tensor")
    with pytest.raises(EmulationError, match=r"capturelint_custom::absent\.default has neither a CPU nor a fake"):
        torch.ops.capturelint_custom.absent(torch.zeros(1, device="cuda"))


@pytest.fixture
def triton(tmp_path, monkeypatch):
    """A package that is imported and launched as Triton's kernels are."""
    if "triton" in sys.modules:
        pytest.skip("the real one is loaded")
    (tmp_path / "triton/runtime").mkdir(parents=True)
    (tmp_path / "triton/__init__.py").write_text("from triton.runtime.jit import jit\n")
    (tmp_path / "triton/runtime/__init__.py").write_text("")
    (tmp_path / "triton/runtime/jit.py").write_text(
        textwrap.dedent(
            """
            class JITFunction:
                def __init__(self, fn):
                    self.fn = fn

                def __getitem__(self, grid):
                    return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

                def run(self, *args, grid, warmup, **kwargs):
                    raise RuntimeError("0 active drivers ([]). There should only be one.")

            jit = JITFunction
            """
        )
    )
    (tmp_path / "triton/runtime/interpreter.py").write_text(
        textwrap.dedent(
            """
            class GridExecutor:
                def __init__(self, fn):
                    self.fn = fn

                def __call__(self, *args, **kwargs):
                    self.fn(*args, **kwargs)
            """
        )
    )
    (tmp_path / "triton/runtime/autotuner.py").write_text(
        textwrap.dedent(
            """
            class Autotuner:
                def __init__(self, fn, configs):
                    self.fn = fn
                    self.base_fn = fn.fn
                    self.configs = configs
                    self.cache = {}

                def _bench(self, *args, config, **kwargs):
                    raise RuntimeError("0 active drivers ([]). There should only be one.")

                def run(self, *args):
                    key = args[0].shape
                    if key not in self.cache:
                        timings = {config: self._bench(*args, config=config) for config in self.configs}
                        self.cache[key] = min(timings, key=timings.get)
                    self.fn(*args, number=self.cache[key])
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: __import__("triton")
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        del sys.modules[name]


def test_a_triton_kernel_is_named(triton):
    @triton().jit
    def scaled(x):
        pass

    with pytest.raises(EmulationError, match="Triton kernel `scaled` runs on a GPU only"):
        scaled[(1,)](torch.ones(2, device="cuda"))


def test_a_kernel_in_tritons_interpreter_is_captured_and_undone(triton):
    from_the_interpreter = importlib.import_module(f"{triton().__name__}.runtime.interpreter")

    def add(x, out, number):
        out += x * number

    launch = from_the_interpreter.GridExecutor(add)
    x, out = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x + 1, out=out, number=2)
    assert out.tolist() == [0.0, 0.0, 0.0]
    x.fill_(4)
    graph.replay()
    assert out.tolist() == [10.0, 10.0, 10.0]


def add(x, out, number):
    out += x * number


def test_an_autotuner_takes_the_first_configuration_and_is_refused_in_a_capture(triton):
    runtime = f"{triton().__name__}.runtime"
    launch = importlib.import_module(f"{runtime}.interpreter").GridExecutor(add)
    tuner = importlib.import_module(f"{runtime}.autotuner").Autotuner(launch, (2, 3))
    x, out = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    tuner.run(x, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tuner.run(x, out)
    graph.replay()
    assert (out.tolist(), tuner.cache) == ([4.0, 4.0, 4.0], {x.shape: 2})
    with (
        pytest.raises(CaptureRefused, match="previous error"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        pytest.raises(CaptureRefused, match="autotuner of Triton kernel `add`: no configuration is chosen"),
    ):
        tuner.run(x[:2], out[:2])


def test_a_recorder_sees_launches(triton):
    launch = importlib.import_module(f"{triton().__name__}.runtime.interpreter").GridExecutor(add)
    x, out = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    with Recorder(Project((Path(__file__).parent,))) as recorder:
        launch(x, out=out, number=2)
    (call,) = [call for call in recorder.calls if call.short == "add"]
    assert (call.name, call.scalars, call.spots[-1].name) == (
        "triton.add", (("2", "2"),), "test_a_recorder_sees_launches",
    )  # fmt: skip


def store(x, slots, cache, stride, BLOCK):
    at = tl.arange(0, BLOCK)
    slot = tl.load(slots + tl.program_id(0))
    row = cache + slot * stride
    tl.store(row + at, tl.load(x + at).to(tl.float32))


def elsewhere(out, value):
    tl.store(out, value)


def helped(x, out, other):
    elsewhere(out, tl.load(x))
    if other is not None:
        pointer: Any = other
        tl.atomic_add(pointer=pointer, val=max(1, 2))


def described(x, out):
    if (target := tl.make_tensor_descriptor(out)) is not None:
        target.store([0], x.load([0]))


@pytest.mark.parametrize(
    ("kernel", "written"),
    [(store, {"cache", "stride"}), (helped, {"out", "other"}), (described, {"out"}), (len, None)],
)
def test_what_a_kernel_may_write_is_read_off_its_source(kernel, written):
    assert stored_parameters(kernel) == written


def test_an_operation_around_a_triton_kernel_is_run_by_its_version_for_a_cpu(triton):
    @triton().jit
    def scaled(x):
        pass

    @torch.library.custom_op("capturelint_custom::scaled", mutates_args=())
    def operation(x: torch.Tensor) -> torch.Tensor:
        scaled[(1,)](x)
        return x * 2

    @operation.register_kernel("cpu")
    def _(x):
        return x * 2

    assert doubled_after(operation, torch.ones(2, device="cuda")) == [10.0, 10.0]


def test_an_operation_around_a_triton_kernel_is_run_by_its_fake_version(triton):
    @triton().jit
    def scaled(x):
        pass

    @torch.library.custom_op("capturelint_custom::faked", mutates_args=())
    def operation(x: torch.Tensor) -> torch.Tensor:
        scaled[(1,)](x)
        return x * 2

    @operation.register_fake
    def _(x):
        return torch.empty_like(x)

    with pytest.warns(UserWarning, match="its results are zeros of the right shape"):
        assert operation(torch.ones(2, device="cuda")).tolist() == [0.0, 0.0]
