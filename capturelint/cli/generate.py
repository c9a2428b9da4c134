"""``capturelint generate``: write a runner that captures and replays a decode step, for the user to own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, TypeVar

import typer

from capturelint.cli.output import write
from capturelint.errors import CapturelintError, DeviceError, TargetError, UsageError
from capturelint.planning.probe import Kind, Shape, probe_model, probe_plain
from capturelint.planning.record import read_buckets
from capturelint.planning.runner import Sizes, Source, loader_source, runner_source
from capturelint.planning.units import show_bytes, show_count

TRANSFORMERS = "hf:"
DTYPE_NBYTES = {"torch.float32": 4, "torch.bfloat16": 2, "torch.float16": 2}
Result = TypeVar("Result")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("generate", epilog="Example: capturelint generate model.py -o runner.py --plan plan.json")(command)


def command(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A .py file with build(device), or hf:DIRECTORY, or hf:MODEL_TYPE.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The module to write.")],
    buckets: Annotated[
        str | None, typer.Option(metavar="LIST", help="Batch sizes to capture; default 1,2,4,8.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON of `capturelint plan`, whose sizes are captured.")
    ] = None,
    max_batch: Annotated[
        int | None, typer.Option(metavar="N", help="Rows of the cache; default: the largest bucket.")
    ] = None,
    max_length: Annotated[int, typer.Option(metavar="N", help="Positions of the cache.")] = 2048,
    check_every: Annotated[
        int, typer.Option(metavar="STEPS", help="Decode steps between two looks at the stop condition.")
    ] = 8,
    tiny: Annotated[bool, typer.Option("--tiny", help="A tiny random configuration, for hf:MODEL_TYPE.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Write the runner without verifying the step, or though it is unsafe.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Write a runner that captures and replays a decode step.

    Static cache, buckets, capture, padding and decode loop, in one module that needs torch alone and that you own.

    Exit codes: 0 written, 2 usage, an unsafe step, or the target or the machine at fault.
    """
    check_output(output, force)
    sizes = runner_sizes(buckets, plan, max_batch, max_length, check_every)
    source = find_source(target, tiny)
    need_torch()
    if not unsafe:
        refuse_unsafe(target, sizes, tiny, quiet)
    shape = find_shape(source, sizes)
    text = runner_source(source, shape, sizes, output)
    write(text, output)
    if not quiet:
        print("\n".join(summary(target, output, text, shape, sizes)))


def check_output(output: Path, force: bool) -> None:
    """Refuse what cannot or should not be written. Raises ``UsageError``."""
    if output.suffix != ".py":
        raise UsageError(f"--output {output}: a runner is a Python module, so its name ends in .py")
    if output.exists() and not force:
        raise UsageError(f"--output {output}: the file exists; --force overwrites it")
    if not output.resolve().parent.is_dir():
        raise UsageError(f"--output {output}: no such directory")


def runner_sizes(
    buckets: str | None, plan: Path | None, max_batch: int | None, max_length: int, check_every: int
) -> Sizes:
    """The numbers of the runner. Raises ``UsageError`` or ``HistogramError``."""
    if buckets is not None and plan is not None:
        raise UsageError("--buckets and --plan both name the sizes; give one of them")
    if plan is not None:
        try:
            text = plan.read_bytes().decode("utf-8", "replace")  # what is no text is no JSON either
        except OSError as error:
            raise UsageError(f"--plan {plan}: {error.strerror}") from error
        chosen = read_buckets(text, str(plan))
    else:
        chosen = bucket_sizes(buckets or "1,2,4,8")
    for value, least, option in (
        (chosen[-1] if max_batch is None else max_batch, chosen[-1], "--max-batch"),
        (max_length, 2, "--max-length"),
        (check_every, 1, "--check-every"),
    ):
        if value < least:
            raise UsageError(f"{option} {value} is too small; it must be at least {least}")
    return Sizes(chosen, max_batch or chosen[-1], max_length, check_every)


def bucket_sizes(text: str) -> tuple[int, ...]:
    """``1,2,4`` as ascending numbers. Raises ``UsageError``."""
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10 and int(word))]
    if wrong:
        raise UsageError(f"--buckets {text}: '{wrong[0]}' is no batch size; give whole numbers from 1, like 1,2,4,8")
    return tuple(sorted(set(map(int, words))))


def find_source(target: str, tiny: bool) -> Source:
    """Where the model comes from. Raises ``UsageError``."""
    if not target.startswith(TRANSFORMERS):
        from capturelint.cli.verify import existing

        return Source(path=Path(existing(target)))
    name = target.removeprefix(TRANSFORMERS)
    if Path(name).is_dir():
        return Source(directory=str(Path(name).resolve()))
    if not tiny:
        raise UsageError(f"{target}: no such directory; a model type needs --tiny, because it has no sizes of its own")
    return Source(model_type=name)


def need_torch() -> None:
    """Raises ``DeviceError`` without torch: the model must be run to be known."""
    if find_spec("torch") is None:
        raise DeviceError(
            "generate runs the model, so it needs torch; install it with: pip install 'capturelint[verify]'"
        )


def find_shape(source: Source, sizes: Sizes) -> Shape:
    """Run the model and find out how its step is called. Raises ``TargetError``."""
    from capturelint.runtime.target import is_model_only

    name, module = source.title, load(source)
    device = cuda_if_any()
    if source.path is None:
        return run_target(lambda: probe_model(module.build_model(device), name, sizes.max_length), name)
    if is_model_only(module):
        return run_target(lambda: probe_model(module.build(device), name, sizes.max_length), name)
    missing = [each for each in ("build", "inputs", "step") if not callable(getattr(module, each, None))]
    if missing:
        raise TargetError(f"{name}: no `{missing[0]}`; a target defines build(device), or build, inputs and step")
    return run_target(lambda: probe_plain(module, device, name, sizes.max_batch, sizes.max_length), name)


def load(source: Source) -> ModuleType:
    """The target's own module, or for transformers the one that makes the model. Raises ``TargetError``."""
    from capturelint.runtime.target import load_module

    with tempfile.TemporaryDirectory() as folder:
        loader = Path(folder) / "loader.py"
        loader.write_text(loader_source(source, loader), encoding="utf-8")
        module = load_module(loader)
        if source.path is None:
            return module
        target: ModuleType = run_target(module.load_target, source.title)
        return target


def run_target(function: Callable[[], Result], name: str) -> Result:
    """Run the target's code; what it raises is its fault. Raises ``TargetError``."""
    try:
        return function()
    except CapturelintError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(f"{name}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def cuda_if_any() -> str:
    """The device to run the model on; the loader has imported torch."""
    return "cuda" if sys.modules["torch"].cuda.is_available() else "cpu"


def refuse_unsafe(target: str, sizes: Sizes, tiny: bool, quiet: bool) -> None:
    """Verify a step at the smallest and the largest bucket. Raises ``TargetError`` after printing the findings."""
    from capturelint.cli.verify import ended_by_signals, progress, source_lines
    from capturelint.report.verify_text import render_verify_text
    from capturelint.runtime.blame import Suspects
    from capturelint.runtime.protocol import Plan
    from capturelint.runtime.verify import Limits, verify

    plan = Plan(
        target=target,
        device="auto",
        buckets=tuple(sorted({sizes.buckets[0], sizes.buckets[-1]})),
        steps=8,
        warm_up=3,
        max_length=sizes.max_length,
        tiny=tiny,
    )
    with ended_by_signals(), progress(quiet, plan) as tell:
        report = verify(plan, Limits(timeout_s=300, memory_gib=None), Suspects(), tell=tell)
    if report.verdict != "safe":
        sys.stdout.write(render_verify_text(report, source_lines))
        said = "is unsafe" if report.verdict == "unsafe" else "fails without any capture"
        raise TargetError(f"{target}: the step {said}, so no runner is written; --unsafe writes it anyway")


def summary(target: str, output: Path, text: str, shape: Shape, sizes: Sizes) -> list[str]:
    """What was written, what the model is, what to do next."""
    rows = f"{show_count(sizes.max_batch, 'row')} of {show_count(sizes.max_length, 'position')}"
    buckets = ",".join(map(str, sizes.buckets))
    prompt = "whole" if shape.whole_prompt else "token by token"
    return [
        f"{target}: {cache_words(shape, sizes)}; prompts are run {prompt}",
        f"next: capturelint verify {output} --buckets {buckets}",
        f"wrote {output}: {len(text.splitlines())} lines, buckets {buckets}, {rows}",
    ]


def cache_words(shape: Shape, sizes: Sizes) -> str:
    """Where the cache is, and what it takes."""
    if shape.kind is Kind.PLAIN:
        return "the cache is in the state that its `build` makes"
    if shape.geometry is None:
        return f"the caches of its `setup_caches` ({', '.join(shape.cache_names)}), one position for all rows"
    found = shape.geometry
    each = f"{show_count(found.num_layers, 'layer')} of {show_count(found.num_kv_heads, 'head')}, {found.head_dim} wide"
    numbers = 2 * found.num_layers * found.num_kv_heads * found.head_dim * sizes.max_batch * sizes.max_length
    width = DTYPE_NBYTES.get(found.dtype)
    return f"a static cache for {each}, {found.dtype}, {show_bytes(numbers * width if width else None)}"
