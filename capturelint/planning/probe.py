"""What a runner must know of a model, found by calling it: argument layouts, cache geometry, vocabulary.

Nothing is read from configurations: the model is run at two batch sizes with a cache that looks on. torch is never
imported here, the model brings its own. The surprise: whether a prompt may be given whole is decided by giving it
whole and token by token, and comparing the logits.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count, product
from typing import Any, Protocol, TypeAlias

from capturelint.arguments import CACHES, MASKS, POSITIONS, TOKENS
from capturelint.errors import TargetError

Tensor: TypeAlias = Any
"""A torch tensor; only its own methods are used."""
Model: TypeAlias = Any

LENGTH = 8
"""Positions of the cache while probing."""
PROMPT = 3
CLOSE = 0.1
"""Relative: bfloat16 logits of the same prompt differ by less, those of another prompt by more."""


class Kind(Enum):
    """Where the cache lives."""

    CACHE = "cache"
    """The model is given a cache and calls its ``update``."""
    SETUP = "setup"
    """The model makes its caches in ``setup_caches`` (gpt-fast)."""
    PLAIN = "plain"
    """The target defines the plain protocol; its state holds the cache."""


class Layout(Enum):
    """The shape of tokens or positions in a step of b rows."""

    ROWS = "[b, 1]"
    FLAT = "[b]"
    SHARED = "[1]"
    SCALAR = "[]"


@dataclass(frozen=True, slots=True)
class Geometry:
    """A static cache: the same in every layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Shape:
    """How the step is called. ``logits`` is the expression behind the call that gives [b, 1, vocab]."""

    kind: Kind
    tokens: tuple[str, Layout]
    positions: tuple[str, Layout] | None
    """``None``: the state of a plain target counts its steps itself."""
    vocab_size: int
    logits: str
    cache: str | None = None
    mask: str | None = None
    use_cache: bool = False
    whole_prompt: bool = False
    geometry: Geometry | None = None
    cache_names: tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether all rows are at one position."""
        return self.positions is None or self.positions[1] in {Layout.SHARED, Layout.SCALAR}


@dataclass(slots=True)
class WatchingCache:
    """A short static cache that writes down what it is asked to keep. ``places[b][t]`` are positions."""

    places: Sequence[Sequence[int]]
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    is_compileable: bool = True

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write [b, heads, t, head size] and return all positions."""
        if layer_idx not in self.keys:
            self.keys[layer_idx] = key.new_zeros(*key.shape[:2], LENGTH, key.shape[3])
            self.values[layer_idx] = value.new_zeros(*value.shape[:2], LENGTH, value.shape[3])
        for row, places in enumerate(self.places):
            for at, place in enumerate(places):
                self.keys[layer_idx][row, :, place] = key[row, :, at]
                self.values[layer_idx][row, :, place] = value[row, :, at]
        return self.keys[layer_idx], self.values[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions and masks are given, so nobody needs it."""
        return 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """The length of every row."""
        return LENGTH

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """How many keys a mask spans, and where they begin."""
        return LENGTH, 0

    @property
    def is_sliding(self) -> tuple[bool, ...]:
        """No layer slides."""
        return (False,) * 1_000


@dataclass(frozen=True, slots=True)
class Probe:
    """A model and the names that its ``forward`` takes."""

    model: Model
    kind: Kind
    names: Mapping[str, str | None]
    takes_use_cache: bool
    anything: Tensor
    batches: Iterator[int]
    """Ascending: ``setup_caches`` of gpt-fast keeps a cache that is larger than asked for."""

    def call(self, layouts: tuple[Layout, Layout], tokens: list[list[int]], first: int, cache: WatchingCache) -> object:
        """Run tokens [b][t] at positions ``first``, ``first + 1``, ... of every row."""
        batch, length = len(tokens), len(tokens[0])
        spans = [range(first, first + length)] * batch
        cache.places = spans
        arguments: dict[str, object] = {
            str(self.names["tokens"]): self.integers(arrange(tokens, layouts[0])),
            str(self.names["positions"]): self.integers(arrange([list(span) for span in spans], layouts[1])),
        }
        if (name := self.names["cache"]) is not None:
            arguments[name] = cache
        if (name := self.names["mask"]) is not None:
            hidden = [[[[float(place > at) for place in range(LENGTH)] for at in span]] for span in spans]
            arguments[name] = self.anything.new_tensor(hidden) * -1e4
        if self.takes_use_cache:
            arguments["use_cache"] = True
        return self.model(**arguments)

    def integers(self, numbers: object) -> Tensor:
        """Numbers as a tensor of 64-bit integers on the model's device."""
        return self.anything.new_tensor(numbers).long()

    def prepare(self) -> int:
        """Make the model's own caches for another batch; return its size."""
        batch = next(self.batches)
        if self.kind is Kind.SETUP:
            with self.anything.device:  # as gpt-fast does: its masks and tables name no device
                self.model.setup_caches(batch, LENGTH)
        return batch


def arrange(numbers: list[list[int]], layout: Layout) -> object:
    """Numbers [b][t] in a layout."""
    match layout:
        case Layout.ROWS:
            return numbers
        case Layout.FLAT:
            return [row[0] for row in numbers]
        case Layout.SHARED:
            return numbers[0]
        case Layout.SCALAR:
            return numbers[0][0]


def probe_model(model: Model, name: str, max_length: int) -> Shape:
    """Find out how a model's decode step is called. Raises ``TargetError``."""
    refuse_windows(model, name, max_length)
    kind = Kind.SETUP if callable(getattr(model, "setup_caches", None)) else Kind.CACHE
    model.eval().requires_grad_(False)
    probe = Probe(model, kind, *forward_names(model, kind, name), floating_parameter(model, name), count(2))
    failures: list[str] = []
    for layouts in product((Layout.ROWS, Layout.FLAT), position_layouts(str(probe.names["positions"]))):
        try:
            return shape_of(probe, layouts, name)
        except TargetError:
            raise
        except Exception as error:  # noqa: BLE001 - the model may raise anything for a layout that it does not take
            failures.append(f"{layouts[0].value} and {layouts[1].value}: {first_line(error)}")
    raise TargetError(f"{name}: forward fails with tokens and positions as " + "; ".join(failures))


def refuse_windows(model: Model, name: str, max_length: int) -> None:
    """Raises ``TargetError`` if a full-length mask would widen the attention of a transformers model."""
    config = getattr(model, "config", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    slides = "sliding_attention" in kinds or (not kinds and window is not None)
    if slides and (window is None or max_length > window):
        raise TargetError(
            f"{name}: layers attend to a window of {window} positions, but the mask of a generated cache shows all of "
            f"its {max_length}; a --max-length up to the window is exact"
        )
    if others := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise TargetError(f"{name}: layers of type `{others[0]}` keep more than keys and values")


def floating_parameter(model: Model, name: str) -> Tensor:
    """A parameter that knows the model's device and dtype."""
    found = next((each for each in model.parameters() if each.is_floating_point()), None)
    if found is None:
        raise TargetError(f"{name}: the model has no floating-point parameter, so its dtype is unknown")
    return found


def forward_names(model: Model, kind: Kind, name: str) -> tuple[Mapping[str, str | None], bool]:
    """Which parameters of ``forward`` are tokens, positions, cache and mask, and whether it takes ``use_cache``."""
    parameters = inspect.signature(model.forward).parameters
    groups = {"tokens": TOKENS, "positions": POSITIONS, "cache": CACHES, "mask": MASKS}
    names = {group: next((known for known in words if known in parameters), None) for group, words in groups.items()}
    if kind is Kind.SETUP:
        names["cache"] = names["mask"] = None
    for group in ("tokens", "positions", *(["cache"] if kind is Kind.CACHE else [])):
        if names[group] is None:
            known = ", ".join(groups[group])
            raise TargetError(
                f"{name}: no {group} among forward's parameters ({', '.join(parameters)}); known: {known}"
            )
    unknown = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        and parameter.name not in names.values()
    ]
    if unknown:
        raise TargetError(f"{name}: forward needs `{unknown[0]}`, which a generated runner cannot make")
    return names, "use_cache" in parameters


def position_layouts(name: str) -> tuple[Layout, ...]:
    """Layouts to try, the usual one for the name first."""
    if name in {"input_pos", "cache_position"}:
        return Layout.SHARED, Layout.FLAT, Layout.ROWS
    return Layout.ROWS, Layout.FLAT, Layout.SHARED


def shape_of(probe: Probe, layouts: tuple[Layout, Layout], name: str) -> Shape:
    """The shape of a call whose layouts fit. Lets the model's errors through where they do not."""
    caches: list[WatchingCache] = []
    for _ in range(2):
        batch = probe.prepare()
        cache = WatchingCache([])
        outputs = probe.call(layouts, [[1]] * batch, 0, cache)
        expression, logits = find_logits(outputs, batch, name)
        caches.append(cache)
    return Shape(
        kind=probe.kind,
        tokens=(str(probe.names["tokens"]), layouts[0]),
        positions=(str(probe.names["positions"]), layouts[1]),
        vocab_size=int(logits.shape[-1]),
        logits=expression,
        cache=probe.names["cache"],
        mask=probe.names["mask"],
        use_cache=probe.takes_use_cache,
        whole_prompt=takes_whole_prompt(probe, layouts),
        geometry=geometry_of(caches[-1], name) if probe.kind is Kind.CACHE else None,
        cache_names=cache_names(probe) if probe.kind is Kind.SETUP else (),
    )


def find_logits(outputs: object, batch: int, name: str) -> tuple[str, Tensor]:
    """The expression that gives logits [b, 1, vocab] from what a step returned, and the logits."""
    found, expression = outputs, ""
    if hasattr(outputs, "logits"):
        found, expression = outputs.logits, ".logits"
    elif isinstance(outputs, (tuple, list)) and outputs:
        found, expression = outputs[0], "[0]"
    shape = tuple(getattr(found, "shape", ()))
    if len(shape) == 3 and shape[:2] == (batch, 1):
        return expression, found
    if len(shape) == 2 and shape[0] == batch:
        return f"{expression}[:, None]", found
    raise TargetError(
        f"{name}: expected logits [{batch}, 1, vocab] or [{batch}, vocab], found {list(shape) or found!r}"
    )


def geometry_of(cache: WatchingCache, name: str) -> Geometry:
    """What the model kept. Raises ``TargetError`` for layers of different shapes."""
    if not cache.keys:
        raise TargetError(f"{name}: the model never calls `update` of its cache, so a static cache has no shape")
    shapes = {tuple(kept.shape) for kept in (*cache.keys.values(), *cache.values.values())}
    if len(shapes) > 1 or set(cache.keys) != set(range(len(cache.keys))):
        raise TargetError(
            f"{name}: layers keep keys and values of different shapes, which a generated cache cannot hold"
        )
    _, num_heads, _, head_dim = shapes.pop()
    return Geometry(len(cache.keys), num_heads, head_dim, str(cache.keys[0].dtype))


def cache_names(probe: Probe) -> tuple[str, ...]:
    """Attributes of submodules whose first dimension is the batch that ``setup_caches`` was given."""
    before = dict(tensors_of(probe.model))
    batch = probe.prepare()
    grown = [
        name.rpartition(".")[2]
        for name, tensor in tensors_of(probe.model)
        if tensor.dim() and tensor.shape[0] == batch and (name not in before or before[name].shape[0] != batch)
    ]
    if not grown:
        raise TargetError("setup_caches makes no tensor whose first dimension is the batch, so rows cannot be narrowed")
    return tuple(dict.fromkeys(grown))


def tensors_of(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Buffers and plain tensor attributes of every submodule, by dotted name."""
    for path, module in model.named_modules():
        held = {**vars(module), **dict(module.named_buffers(recurse=False))}
        for name, value in held.items():
            if hasattr(value, "data_ptr"):
                yield f"{path}.{name}", value


def takes_whole_prompt(probe: Probe, layouts: tuple[Layout, Layout]) -> bool:
    """Whether a prompt given whole has the logits of the same prompt given token by token."""
    if Layout.FLAT in layouts or Layout.SCALAR in layouts:
        return False
    try:
        prompt = [[1 + row % 3, 2 + row % 2, 3 - row % 3] for row in range(probe.prepare())]
        whole = find_last(probe.call(layouts, prompt, 0, WatchingCache([])))
        cache = WatchingCache([])
        for at in range(PROMPT):
            single = find_last(probe.call(layouts, [[row[at]] for row in prompt], at, cache))
        error = (whole - single).abs().max() / single.abs().max()
        return bool(error < CLOSE)
    except Exception:  # noqa: BLE001 - a model that takes one token a step may raise anything for three
        return False


def find_last(outputs: Tensor) -> Tensor:
    """Logits [b, vocab] of the last token."""
    if not hasattr(outputs, "dim"):
        outputs = outputs.logits if hasattr(outputs, "logits") else outputs[0]
    return outputs[:, -1].float() if outputs.dim() == 3 else outputs.float()


class PlainTarget(Protocol):
    """A module that defines the plain protocol."""

    def build(self, device: str) -> object:
        """The state."""

    def inputs(self, batch: int, step: int, device: str) -> Mapping[str, Tensor]:
        """What a step is given."""

    def step(self, state: object, **inputs: Tensor) -> object:
        """One decode step."""


def probe_plain(target: PlainTarget, device: str, name: str, largest: int, max_length: int) -> Shape:
    """Find out how a step of the plain protocol is called. Raises ``TargetError``."""
    given = {batch: target.inputs(batch, 0, device) for batch in (2, 3)}
    names = [next((known for known in words if known in given[2]), None) for words in (TOKENS, POSITIONS)]
    tokens, positions = names
    others = [each for each in given[2] if each not in names]
    if tokens is None or others or given[2][tokens].is_floating_point():
        found = ", ".join(given[2])
        raise TargetError(f"{name}: a generated runner feeds token ids and, if asked for, positions; found {found}")
    state = target.build(device)
    try:
        outputs = target.step(state, **target.inputs(largest, 0, device))
        target.step(state, **target.inputs(largest, max_length - 1, device))
    except Exception as error:
        where = f"at batch {largest} or position {max_length - 1}"
        raise TargetError(f"{name}: step fails {where}: {first_line(error)}; see --max-length") from error
    expression, logits = find_logits(outputs, largest, name)
    return Shape(
        kind=Kind.PLAIN,
        tokens=(tokens, layout_of(given, tokens, name)),
        positions=(positions, layout_of(given, positions, name)) if positions else None,
        vocab_size=int(logits.shape[-1]),
        logits=expression,
    )


def layout_of(given: Mapping[int, Mapping[str, Tensor]], name: str, target: str) -> Layout:
    """The layout of an input, from its shapes at batch 2 and 3."""
    shapes = tuple(tuple(given[batch][name].shape) for batch in (2, 3))
    layouts = {
        ((2, 1), (3, 1)): Layout.ROWS,
        ((2,), (3,)): Layout.FLAT,
        ((1,), (1,)): Layout.SHARED,
        ((), ()): Layout.SCALAR,
    }
    if shapes not in layouts:
        raise TargetError(
            f"{target}: `{name}` has shapes {shapes[0]} and {shapes[1]} at batch 2 and 3, expected [b, 1] or [b]"
        )
    return layouts[shapes]


def first_line(error: Exception) -> str:
    """An error in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"
