"""A model alone becomes a target: inputs from the names in ``forward``'s signature, the cache from the tool.

The names are those of gpt-fast, of nanoGPT-like models, of transformers and of vLLM-like ones. Shapes are found by
trying: the few layouts that such models use are called eagerly until one works. The inputs are always a token a row
and one position, on the device and as a number of the host; ``forward`` gets views, which a capture records as nothing.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch

from capturelint.arguments import CACHES, COUNTERS, MASKS, POSITIONS, TOKENS
from capturelint.errors import TargetError
from capturelint.runtime.outputs import flatten
from capturelint.runtime.project import project_roots, text_of
from capturelint.runtime.static_cache import StaticCache, WatchingCache
from capturelint.runtime.target import Inputs, Target

REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError, KeyError)

KEYS_PER_BLOCK = 128
"""What ``create_block_mask`` takes by default."""

Layout = Callable[[torch.Tensor, int], torch.Tensor]
ON_HOST = None
"""The layout of a position that is a Python number."""


def rows(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    """[batch, 1]."""
    return tensor.reshape(-1, 1).expand(batch, 1)


def flat(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    """[batch]."""
    return tensor.reshape(-1).expand(batch)


def shared(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    """[1]: one position for all rows."""
    return tensor.reshape(-1)[:1]


@dataclass(frozen=True, slots=True)
class Call:
    """How ``forward`` is called: parameter names and the layouts that worked."""

    tokens: str
    token_layout: Layout
    positions: tuple[str, ...] = ()
    position_layout: Layout | None = shared
    cache: str = ""
    mask: str = ""
    mask_is_flat: bool = False
    block_mask: str = ""
    constants: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class ModelState:
    """The state of a model-only target."""

    model: Any
    cache: Any = None
    block_mask: Any = None
    call: Call | None = None


def model_target(build: Callable[[str], object], path: Path, max_length: int) -> Target:
    """The target of a file that defines ``build`` alone."""
    vocabulary: list[int] = []
    folders: set[Path] = set()

    def build_state(device: str) -> ModelState:
        model = build(device)
        if not isinstance(model, torch.nn.Module):
            raise TargetError(
                f"{path}: build returns {type(model).__name__}; without inputs and step it must return an nn.Module"
            )
        vocabulary[:] = [vocabulary_of(model, path)]
        folders.update(folders_of(model))
        return ModelState(model)

    def prepare(state: object, batch: int) -> None:
        assert isinstance(state, ModelState)
        fit(state, batch, max_length, path)

    def inputs(batch: int, step: int, device: str) -> Inputs:
        generator = torch.Generator().manual_seed(step)
        token = torch.randint(0, vocabulary[0], (batch, 1), generator=generator)
        return {"token": token.to(device), "position": torch.tensor([step], device=device), "place": step}

    return Target(
        build_state, inputs, decode, project_roots(path), prepare, max_length - 1, lambda: tuple(sorted(folders))
    )


def folders_of(model: torch.nn.Module) -> set[Path]:
    """Where the model's classes are written: the file with ``build`` may only import them."""
    files = {getattr(sys.modules.get(type(each).__module__), "__file__", None) for each in model.modules()}
    theirs = Path(torch.__file__).parent
    return {Path(file).parent for file in files if file and not Path(file).is_relative_to(theirs)}


def vocabulary_of(model: torch.nn.Module, path: Path) -> int:
    """Rows of the first embedding. Raises ``TargetError`` for a model without any."""
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    if not tables:
        raise TargetError(f"{path}: the model has no nn.Embedding, so no token ids can be made; define inputs and step")
    return tables[0].num_embeddings


def decode(state: object, token: torch.Tensor, position: torch.Tensor, place: int) -> object:
    """One decode step; ``place`` is ``position`` as a number of the host."""
    assert isinstance(state, ModelState)
    assert state.call is not None
    return state.model(**arguments(state.call, state, token, position, place))


def arguments(
    call: Call, state: ModelState, token: torch.Tensor, position: torch.Tensor, place: int
) -> dict[str, object]:
    """The keywords of one call."""
    cache = state.cache
    batch = token.shape[0]
    given: dict[str, object] = {call.tokens: call.token_layout(token, batch), **call.constants}
    where = place if call.position_layout is ON_HOST else call.position_layout(position, batch)
    given |= dict.fromkeys(call.positions, where)
    if call.cache:
        given[call.cache] = cache
    if call.mask and isinstance(cache, StaticCache):
        mask = cache.mask(position)
        given[call.mask] = mask[0, 0].expand(batch, -1) if call.mask_is_flat else mask
    if call.block_mask:
        given[call.block_mask] = copy.copy(state.block_mask)  # gpt-fast gives each one another ``mask_mod``
    return given


def block_mask(length: int, device: torch.device) -> Any:  # noqa: ANN401 - torch's flex_attention is imported late
    """A causal mask of one query over all blocks of ``length`` keys: the same blocks at every position."""
    from torch.nn.attention.flex_attention import BlockMask

    blocks = torch.arange(-(-length // KEYS_PER_BLOCK), dtype=torch.int32, device=device)
    count = torch.full((1, 1, 1), len(blocks), dtype=torch.int32, device=device)
    return BlockMask.from_kv_blocks(
        count,
        blocks.reshape(1, 1, 1, -1),
        BLOCK_SIZE=KEYS_PER_BLOCK,
        mask_mod=lambda batch, head, query, key: query >= key,
        seq_lengths=(1, length),
    )


def fit(state: ModelState, batch: int, max_length: int, path: Path) -> None:
    """Give a state its caches and the way to call it. Raises ``TargetError`` where no layout works."""
    has_caches = callable(getattr(state.model, "setup_caches", None))
    refused: list[str] = []
    for call in ways(state.model, has_caches, path):
        try:
            state.cache = make_cache(state.model, call, batch, max_length)
            if call.block_mask:
                length = getattr(state.model, "max_seq_length", max_length)
                state.block_mask = block_mask(length, device_of(state.model))
            if not list(flatten(try_out(call, state, batch))):
                raise TypeError("forward returned no tensor")
            state.cache = make_cache(state.model, call, batch, max_length)
        except REFUSALS as error:
            refused.append(f"{type(error).__name__}: {' '.join(text_of(error).split())[:160]}")
            continue
        state.call = call
        return
    raise TargetError(
        f"{path}: no way of calling `forward{inspect.signature(state.model.forward)}` works at batch {batch}; "
        f"define inputs and step (the first way raised {refused[0]})"
    )


def ways(model: torch.nn.Module, has_caches: bool, path: Path) -> Iterator[Call]:
    """The calls to try, the likeliest first. Raises ``TargetError`` for a parameter that nobody can fill."""
    parameters = inspect.signature(model.forward).parameters
    tokens = first_of(parameters, TOKENS)
    if not tokens:
        raise TargetError(f"{path}: no parameter of `forward` is called like token ids ({', '.join(TOKENS)})")
    counters = [name for name, each in parameters.items() if name in COUNTERS and each.default is each.empty]
    positions = (*(name for name in POSITIONS if name in parameters), *(c for c in counters if c not in POSITIONS))
    cache = "" if has_caches else first_of(parameters, CACHES)
    blocks = next((name for name, each in parameters.items() if "BlockMask" in str(each.annotation)), "")
    mask = first_of(parameters, MASKS) if cache and not blocks else ""
    constants: dict[str, object] = {"use_cache": True} if "use_cache" in parameters else {}
    filled = {tokens, *positions, cache, mask, blocks, *constants}
    for name, parameter in parameters.items():
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in filled and parameter.default is parameter.empty and not is_open:
            raise TargetError(
                f"{path}: `forward` needs `{name}`, which verify does not know how to fill; "
                "give it a default, or define inputs and step"
            )
    on_host = any("int" in str(parameters[name].annotation) for name in positions)
    for token_layout, position_layout, is_flat in product((rows, flat), layouts(positions, on_host), (False, True)):
        if mask or not is_flat:
            yield Call(tokens, token_layout, positions, position_layout, cache, mask, is_flat, blocks, constants)


def layouts(positions: tuple[str, ...], on_host: bool) -> tuple[Layout | None, ...]:
    """The shapes that positions of these names have, the usual one first; numbers of the host come last if unsaid."""
    if not positions:
        return (shared,)
    usual = shared if {"input_pos", "cache_position", "pos"} & set(positions) else rows
    tensors = (usual, *(each for each in (rows, flat, shared) if each is not usual))
    return (ON_HOST, *tensors) if on_host or not set(POSITIONS) & set(positions) else (*tensors, ON_HOST)


def first_of(parameters: Mapping[str, inspect.Parameter], names: tuple[str, ...]) -> str:
    """The first of ``names`` that is a parameter; empty if none is."""
    return next((name for name in names if name in parameters), "")


def make_cache(model: Any, call: Call, batch: int, max_length: int) -> StaticCache | None:  # noqa: ANN401
    """The model's own caches, or ours in the geometry that one observed step shows."""
    if callable(getattr(model, "setup_caches", None)):
        with device_of(model):
            model.setup_caches(max_batch_size=batch, max_seq_length=max_length)
        return None
    if not call.cache:
        return None
    watching = WatchingCache()
    given = arguments(call, ModelState(model, watching), *trial(model, batch))
    if call.mask:
        shape = (batch, 1) if call.mask_is_flat else (1, 1, 1, 1)
        given[call.mask] = torch.ones(shape, dtype=torch.bool, device=device_of(model))
    with torch.no_grad():
        model(**given)
    return StaticCache(watching.layers, batch, max_length, device_of(model))


def try_out(call: Call, state: ModelState, batch: int) -> object:
    """One eager step with a cache that is thrown away."""
    with torch.no_grad():
        return state.model(**arguments(call, state, *trial(state.model, batch)))


def trial(model: torch.nn.Module, batch: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Inputs for a trial."""
    token = torch.zeros((batch, 1), dtype=torch.long, device=device_of(model))
    return token, torch.zeros(1, dtype=torch.long, device=device_of(model)), 0


def device_of(model: torch.nn.Module) -> torch.device:
    """Where the model's parameters are; it has an embedding, so it has some."""
    return next(model.parameters()).device
