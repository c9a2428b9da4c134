"""A file or a model name becomes a ``Target``: build, inputs, step, whatever form the user gave.

A target is code, so loading it runs it; this module is used in a worker only. The surprise: ``inputs`` may return
host values too; they are passed on unchanged, as a capture would freeze them.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import cast

from torch.utils import _pytree as pytree

from capturelint.errors import TargetError
from capturelint.runtime.project import project_roots
from capturelint.runtime.states import seeded

Inputs = Mapping[str, object]
MAX_STEPS = 100_003
"""Steps beyond this one may draw the inputs of another batch size, which does no harm."""


@dataclass(frozen=True, slots=True)
class Target:
    """A decode step. ``prepare`` gives a built state what one bucket needs (a cache of that batch).

    ``roots`` are the files and folders whose lines may be blamed, ``more_roots`` those that are known once it is built;
    ``last_step`` is the last one that ``inputs`` can make, where that is known.
    """

    build: Callable[[str], object]
    inputs: Callable[[int, int, str], Inputs]
    step: Callable[..., object]
    roots: tuple[Path, ...]
    prepare: Callable[[object, int], None] = lambda state, batch: None
    last_step: int | None = None
    more_roots: Callable[[], tuple[Path, ...]] = tuple


def load_module(path: Path) -> ModuleType:
    """Run a file as a module, its folder first on ``sys.path``. Lets the file's errors through."""
    sys.path.insert(0, str(path.parent))
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path}: not a Python file; a target is a .py file or hf:MODEL")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        error.filename = error.filename or str(path)  # Python does not say which file has a NUL byte
        raise
    return module


def module_name(path: Path) -> str:
    """A name of our own: a target may be called ``random.py``, and two files ``model.py``."""
    return f"capturelint_target_{abs(hash(path.resolve()))}_{path.stem}"


def plain_target(module: ModuleType, path: Path) -> Target:
    """The plain protocol. Raises ``TargetError`` that names what is missing."""
    wanted = ("build", "inputs", "step")
    missing = [name for name in wanted if not callable(getattr(module, name, None))]
    if missing:
        defined = ", ".join(f"`{name}`" for name in wanted if name not in missing) or "none of the three"
        raise TargetError(
            f"{path}: no {' and no '.join(f'`{name}`' for name in missing)}; a target defines build(device), "
            f"inputs(batch, step, device) and step(state, **inputs) (found {defined})"
        )
    return flattened(Target(module.build, repeatable(module.inputs), module.step, project_roots(path)))


def repeatable(inputs: Callable[[int, int, str], Inputs]) -> Callable[[int, int, str], Inputs]:
    """``inputs`` that draws the same values for the same step, however often and in whatever order it is asked."""

    def drawn(batch: int, step: int, device: str) -> Inputs:
        with seeded(batch * MAX_STEPS + step):
            return inputs(batch, step, device)

    return drawn


def flattened(target: Target) -> Target:
    """``target`` with each tensor in a dictionary, a list or a tuple of its inputs as an input of its own.

    They are put together again for the step, so that every tensor has a static buffer.
    """
    specs: dict[str, tuple[tuple[str, ...], pytree.TreeSpec]] = {}

    def inputs(batch: int, step: int, device: str) -> Inputs:
        given: object = target.inputs(batch, step, device)
        if not isinstance(given, Mapping):
            return cast("Inputs", given)  # whoever asks for inputs says what is wrong with them
        flat: dict[str, object] = {}
        for name, value in given.items():
            if not isinstance(value, (dict, list, tuple)):
                flat[name] = value
                continue
            leaves, spec = pytree.tree_flatten_with_path(value)
            names = tuple(f"{name}{pytree.keystr(path)}" for path, _ in leaves)
            specs[name] = names, spec
            flat |= dict(zip(names, (leaf for _, leaf in leaves), strict=True))
        return flat

    def step(state: object, **flat: object) -> object:
        given = dict(flat)
        for name, (names, spec) in specs.items():
            given[name] = pytree.tree_unflatten([given.pop(each) for each in names], spec)
        return target.step(state, **given)

    return replace(target, inputs=inputs, step=step)


def pick(path: Path, name: str) -> Callable[[str], object]:
    """The callable ``name`` of a file, for ``--driver`` and ``--reference``. Raises ``TargetError``."""
    found = getattr(sys.modules.get(module_name(path)) or load_module(path), name, None)
    if not callable(found):
        raise TargetError(f"{path}: no function `{name}`")
    try:
        inspect.signature(found).bind("cuda")
    except TypeError as error:
        raise TargetError(f"{path}: `{name}` cannot be called with a device: {error}") from error
    except ValueError:  # written in C: what it takes is not known
        pass
    picked: Callable[[str], object] = found
    return picked


def is_model_only(module: ModuleType) -> bool:
    """Whether the file defines ``build`` and leaves inputs and step to the tool."""
    return callable(getattr(module, "build", None)) and not any(hasattr(module, name) for name in ("inputs", "step"))


def takes(function: Callable[..., object], name: str) -> bool:
    """Whether ``function`` has a parameter of that name."""
    return name in inspect.signature(function).parameters
