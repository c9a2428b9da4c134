"""The generated runner's source: templates filled with what was found out about a model.

The text is formatted as ``ruff format`` would for any line length from 88 on: lines that could grow are written one
value a line with a trailing comma.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from capturelint.planning.probe import Kind, Layout, Shape

TEMPLATES = Path(__file__).parent / "templates"
LINE_LENGTH = 88
UNUSUAL = re.compile(r"[^\w ./:+-]")
FILE_IMPORTS = "import functools\nimport importlib.util\nimport sys\n"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the model comes from: a Python file, a transformers directory, or a model type made tiny."""

    path: Path | None = None
    directory: str | None = None
    model_type: str | None = None

    @property
    def title(self) -> str:
        """How messages and the module's docstring name it; nothing that could end the docstring."""
        name = self.path.name if self.path else str(self.directory or self.model_type)
        return UNUSUAL.sub("?", name)

    @property
    def needs_transformers(self) -> bool:
        """Whether the model itself is transformers'."""
        return self.path is None


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of a runner."""

    buckets: tuple[int, ...]
    max_batch: int
    max_length: int
    check_every: int


def build_source(source: Source, output: Path, kind: Kind | None = None) -> str:
    """The part of the module that makes the model; it also runs alone."""
    if source.path is not None:
        relative = os.path.relpath(source.path.resolve(), output.resolve().parent)
        model_type = "object" if kind is Kind.PLAIN else "nn.Module"
        return fill("build_file", relative_path=quoted(Path(relative).as_posix()), model_type=model_type)
    if source.directory is not None:
        return fill("build_transformers", model_path=quoted(source.directory))
    return fill("build_tiny", model_type=quoted(str(source.model_type)))


def loader_source(source: Source, output: Path) -> str:
    """A module with ``build_model`` only, to find the model's shape with."""
    imports = (
        f"{FILE_IMPORTS}from pathlib import Path\nfrom types import ModuleType\n\nimport torch\nfrom torch import nn"
    )
    return f"{imports}\n\n{build_source(source, output)}"


def runner_source(source: Source, shape: Shape, sizes: Sizes, output: Path) -> str:
    """The whole module."""
    rows = not shape.shared
    values = {
        "call": call_source(shape),
        "mask": fill("mask") if shape.mask else "",
        "positions_doc": positions_doc(shape),
        "position_buffer": "" if rows else "[0]",
        "position_rows": "[:batch]" if rows else "",
        "pad_positions": "        self.positions[batch:].zero_()\n" if rows else "",
        "prefill": prefill_source(shape),
        "runner_step": runner_step_source(shape),
        "inputs": inputs_source(shape),
        "step_parameters": "tokens: Tensor, positions: Tensor" if shape.positions else "tokens: Tensor",
        "step_positions": "positions" if shape.positions else "torch.zeros_like(tokens[0])",
        "driven": driven_source(shape),
    }
    parts = [fill(name, **values) for name in (f"step_{shape.kind.value}", "runner", "protocol")]
    return head(source, shape, sizes, output) + "".join(parts)


def prefill_source(shape: Shape) -> str:
    """How the runner's ``prefill`` feeds prompts that have been checked."""
    if shape.shared and not shape.whole_prompt:
        # A state that counts its steps must be put back to count from 0.
        return fill("prefill_shared_by_step", restart="" if shape.positions else "        self.decode_step.reset()\n")
    return fill(f"prefill_{'shared' if shape.shared else 'rows'}{'' if shape.whole_prompt else '_by_step'}")


def positions_doc(shape: Shape) -> str:
    """The shape of positions, for docstrings."""
    if shape.positions is None:
        return "that its state counts"
    return "[1], of all rows" if shape.shared else "[b, 1]"


def runner_step_source(shape: Shape) -> str:
    """The runner's ``step``."""
    if shape.positions is None:
        return fill("runner_step_counted")
    places = "[1], the same in all rows" if shape.shared else "[n]"
    return fill("runner_step", positions=places, buffer="" if shape.shared else "[:batch, 0]")


def inputs_source(shape: Shape) -> str:
    """The body of ``inputs``: random tokens, or what a plain target gives."""
    if shape.kind is not Kind.PLAIN:
        return fill("inputs_shared" if shape.shared else "inputs_rows")
    lines = ["    given = load_target().inputs(batch, step, device)\n"]
    named = {"tokens": shape.tokens, **({"positions": shape.positions} if shape.positions else {})}
    for name, (given, layout) in named.items():
        size = "1" if layout in {Layout.SHARED, Layout.SCALAR} else "batch, 1"
        lines.append(f"    {name} = given[{quoted(given)}].reshape({size})\n")
    pairs = ", ".join(f'"{name}": {name}.to(device)' for name in named)
    return "".join(lines) + f"    return {{{pairs}}}\n"


def driven_source(shape: Shape) -> str:
    """How the driver calls the runner's ``step``."""
    if shape.positions is None:
        return 'given["tokens"][:, 0]'
    return f'given["tokens"][:, 0], given["positions"]{"" if shape.shared else "[:, 0]"}'


def head(source: Source, shape: Shape, sizes: Sizes, output: Path) -> str:
    """Docstring, imports, constants and ``build_model``."""
    names = []
    if source.path is not None or source.directory is not None:
        names.append("from pathlib import Path\n")
    if source.path is not None or shape.kind is Kind.PLAIN:
        names.append("from types import ModuleType\n")
    return fill(
        "head",
        title=source.title,
        needs=", transformers for the model itself" if source.needs_transformers else "",
        example_prompts="[[1, 2, 3], [4, 5, 6]]" if shape.shared else "[[1, 2, 3], [4, 5]]",
        imports=FILE_IMPORTS if source.path is not None else "",
        names_imported="".join(names),
        buckets=numbers(sizes.buckets, "BUCKETS"),
        max_batch=str(sizes.max_batch),
        max_length=str(sizes.max_length),
        check_every=str(sizes.check_every),
        vocab_size=str(shape.vocab_size),
        geometry=geometry_source(shape),
        build_model=build_source(source, output, shape.kind),
    )


def geometry_source(shape: Shape) -> str:
    """The constants of the static cache."""
    if shape.geometry is not None:
        geometry = shape.geometry
        return (
            f"NUM_LAYERS = {geometry.num_layers}\nNUM_KV_HEADS = {geometry.num_kv_heads}\n"
            f"HEAD_DIM = {geometry.head_dim}\nDTYPE = {geometry.dtype}\n"
        )
    if shape.cache_names:
        return f"CACHE_NAMES = {tuple_of([quoted(name) for name in shape.cache_names])}\n"
    return ""


def call_source(shape: Shape) -> str:
    """The call of the model, one argument a line, and its logits."""
    target = "load_target().step" if shape.kind is Kind.PLAIN else "self.model"
    arguments = ["self.state"] if shape.kind is Kind.PLAIN else []
    arguments.append(f"{shape.tokens[0]}={layout_source('tokens', shape.tokens[1])}")
    if shape.positions:
        arguments.append(f"{shape.positions[0]}={layout_source('positions', shape.positions[1])}")
    if shape.cache:
        arguments.append(f"{shape.cache}=view")
    if shape.mask:
        arguments.append(f"{shape.mask}=causal_mask(positions)")
    if shape.use_cache:
        arguments.append("use_cache=True")
    lines = "".join(f"            {argument},\n" for argument in arguments)
    call = f"        outputs = {target}(\n{lines}        )\n"
    return f"{call}        logits: Tensor = outputs{shape.logits}\n        return logits\n"


def layout_source(name: str, layout: Layout) -> str:
    """What the model is given, from tokens or positions [b, 1] or positions [1]."""
    match layout:
        case Layout.ROWS | Layout.SHARED:
            return name
        case Layout.FLAT:
            return f"{name}[:, 0]"
        case Layout.SCALAR:
            return f"{name}[0]"


def numbers(values: Sequence[int], name: str) -> str:
    """A tuple in one line where it fits, else one value a line."""
    line = tuple_of([str(value) for value in values])
    if len(f"{name} = {line}") <= LINE_LENGTH:
        return line
    return "(\n" + "".join(f"    {value},\n" for value in values) + ")"


def tuple_of(items: Sequence[str]) -> str:
    """A tuple as source, with the comma that a single item needs."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def quoted(text: str) -> str:
    """A string literal in double quotes."""
    return json.dumps(text)


def fill(name: str, **values: str) -> str:
    """A template with its values."""
    return Template((TEMPLATES / f"{name}.py.in").read_text(encoding="utf-8")).substitute(values)
