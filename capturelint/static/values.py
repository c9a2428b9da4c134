"""What the analyser knows about a Python value: a device tensor, a host number and how often it changes, an object.

Values are immutable; everything that code can mutate (instances, lists, dicts) lives in the heap and is pointed at by
a ``Ref``. ``Unknown`` means "anything" and never causes an event: doubt is silent. A ``Union`` holds the few
alternatives that joining two paths leaves.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from capturelint.static.records import quick, replace
from capturelint.vocabulary import Confidence, Varies

if TYPE_CHECKING:
    from capturelint.static.events import Site
    from capturelint.static.index import ClassDef, FunctionDef, Module

MAX_OPTIONS = 12


class Memory(Enum):
    """Where a tensor's bytes are."""

    DEVICE = "device"
    HOST = "host"
    PINNED = "pinned"
    EITHER = "either"
    """Not known: the default device or a ``device=`` argument could not be told."""


class Kind(Enum):
    """What a tensor's elements are, as far as indexing cares."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    UNKNOWN = "unknown"


class Truth(Enum):
    """What a condition says, and if it says nothing, why."""

    TRUE = "true"
    FALSE = "false"
    HOST = "host"
    """An unknown host value that does not change from step to step."""
    STEP = "step"
    """A host value that changes at every step."""
    DEVICE = "device"
    """A value on the device: reading it is the hazard."""


@quick
@dataclass(frozen=True, slots=True)
class Home:
    """A slot that outlives a step: an attribute, an item, or a static input."""

    owner: int
    key: object

    def __str__(self) -> str:
        return str(self.key)


@quick
@dataclass(frozen=True, slots=True)
class Unknown:
    """Anything."""


@quick
@dataclass(frozen=True, slots=True)
class Const:
    """A host value known exactly: number, text, ``None``, ``...``. ``deps`` are the homes that it was computed from."""

    value: object
    deps: frozenset[Home] = frozenset()


@quick
@dataclass(frozen=True, slots=True)
class Member:
    """A member of an enumeration, as the value of a ``Const``: equal to itself only."""

    definition: ClassDef
    name: str

    def __repr__(self) -> str:
        return f"{self.definition.name}.{self.name}"


@quick
@dataclass(frozen=True, slots=True)
class Number:
    """A host number or flag that is not known exactly.

    ``drawn`` is the call that drew it from a host clock or generator; ``read`` says that it was read from the device,
    so that the read is reported and not every later use.
    """

    varies: Varies = Varies.NEVER
    deps: frozenset[Home] = frozenset()
    drawn: Site | None = None
    read: bool = False
    sure: Confidence = Confidence.CERTAIN


@quick
@dataclass(frozen=True, slots=True)
class Text:
    """A host string that is not known exactly."""


@quick
@dataclass(frozen=True, slots=True)
class CaptureQuery:
    """The answer of ``is_current_stream_capturing()``; ``negated`` after ``not``."""

    negated: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Device:
    """A ``torch.device``: of the accelerator, of the host, or not known."""

    memory: Memory


@quick
@dataclass(frozen=True, slots=True)
class Dtype:
    """A ``torch.dtype``."""

    kind: Kind


@quick
@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. ``rank`` is ``None`` where it is not known.

    ``home`` is the slot whose content from before the step this is (or a view of, if ``view``); ``extends`` is set on a
    concatenation that is longer than its home. ``ident`` tells tensors apart across names. ``rows`` is the size of
    the first dimension where it is a constant.
    """

    memory: Memory = Memory.DEVICE
    rank: int | None = None
    kind: Kind = Kind.UNKNOWN
    sure: Confidence = Confidence.CERTAIN
    home: Home | None = None
    view: bool = False
    extends: Home | None = None
    made: Site | None = None
    ident: int = 0
    rows: int | None = None
    recorded: bool = False
    output: bool = False
    """True where recorded code made it, under this capture or an earlier one: a replay writes it again."""
    negative: bool = False
    zero: bool = False
    """True where a first item is surely the number 0: ``arange(n)``, a literal list with a 0."""
    varies: Varies = Varies.NEVER
    deps: frozenset[Home] = frozenset()
    parameter: bool = False
    argument: bool = False
    """True for a tensor that the entry was called with."""
    placed: bool = False
    """True where the code named the device, so that no default and no later move decides."""
    array: bool = False
    """True for a NumPy array: host memory, and not a torch tensor."""
    drawn: Site | None = None
    """The call that drew a host tensor from a generator."""
    stretched: bool = False
    """True where its length, and not only what it holds, changes as ``varies`` says."""
    kept: tuple[int, Site] | None = None
    """The replay after which an output was given this name, and where: a later replay overwrites it."""
    strided: bool = False
    """True for a view whose strides change with the length of the tensor that it was cut from."""

    @property
    def on_device(self) -> bool:
        """True where the bytes are surely on the device."""
        return self.memory is Memory.DEVICE

    @property
    def on_host(self) -> bool:
        """True where the bytes are surely in host memory."""
        return self.memory in (Memory.HOST, Memory.PINNED)


@quick
@dataclass(frozen=True, slots=True)
class Sequence:
    """An immutable sequence: exact ``items``, or ``None`` and any number of ``element``."""

    items: tuple[Value, ...] | None
    element: Value = Unknown()
    shape: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Slice:
    """``start:stop:step``."""

    start: Value
    stop: Value
    step: Value


@quick
@dataclass(frozen=True, slots=True)
class Range:
    """``range(...)``; ``items`` where all bounds are constants and the range is short."""

    varies: Varies
    items: tuple[int, ...] | None = None


@quick
@dataclass(frozen=True, slots=True)
class Ref:
    """A pointer to an object in the heap."""

    oid: int


@quick
@dataclass(frozen=True, slots=True)
class Function:
    """A function of the analysed code with the environment that it closes over."""

    definition: FunctionDef
    module: Module
    owner: ClassDef | None = None
    scope: Scope | None = None
    compiled: bool = False
    cached: bool = False
    """True under ``functools.cache``: what it gave for some arguments it gives again without running."""

    def __hash__(self) -> int:
        return id(self.definition)


@quick
@dataclass(frozen=True, slots=True)
class Lambda:
    """A lambda with the environment that it closes over."""

    node: ast.Lambda
    module: Module
    scope: Scope

    def __hash__(self) -> int:
        return id(self.node)


@quick
@dataclass(frozen=True, slots=True)
class Method:
    """A function bound to its first argument."""

    function: Value
    owner: Value


@quick
@dataclass(frozen=True, slots=True)
class Partial:
    """``functools.partial(function, *args, **kwargs)``."""

    function: Value
    args: tuple[Value, ...]
    kwargs: tuple[tuple[str, Value], ...]


@quick
@dataclass(frozen=True, slots=True)
class Class:
    """A class of the analysed code."""

    definition: ClassDef

    def __hash__(self) -> int:
        return id(self.definition)


@quick
@dataclass(frozen=True, slots=True)
class ModuleValue:
    """A module of the analysed code."""

    module: Module

    def __hash__(self) -> int:
        return id(self.module)


@quick
@dataclass(frozen=True, slots=True)
class External:
    """A name from outside the analysed code, by its dotted path: ``torch.nn.functional.softmax``."""

    path: str


@quick
@dataclass(frozen=True, slots=True)
class BoundExternal:
    """An attribute of a value that no analysed code defines: ``tensor.sum``, ``[].append``."""

    owner: Value
    name: str


@quick
@dataclass(frozen=True, slots=True)
class Super:
    """``super()`` inside a method: attribute look-up starts after ``after``."""

    owner: Value
    after: ClassDef

    def __hash__(self) -> int:
        return id(self.after)


@quick
@dataclass(frozen=True, slots=True)
class Union:
    """One of a few alternatives."""

    options: tuple[Value, ...]


Value: TypeAlias = (
    Unknown
    | Const
    | Number
    | Text
    | CaptureQuery
    | Device
    | Dtype
    | Tensor
    | Sequence
    | Slice
    | Range
    | Ref
    | Function
    | Lambda
    | Method
    | Partial
    | Class
    | ModuleValue
    | External
    | BoundExternal
    | Super
    | Union
)

UNKNOWN = Unknown()
NONE = Const(None)
TRUE = Const(True)
FALSE = Const(False)


Test: TypeAlias = tuple[ast.expr, frozenset[str]]
"""A condition and the names that it asks of."""


class Scope:
    """The names of one function call, and the scope that encloses it. Mutable: closures see later assignments."""

    __slots__ = (
        "carried", "globals", "links", "module", "names", "nonlocals", "owner", "parent", "rounds", "tests", "this",
    )  # fmt: skip

    def __init__(self, module: Module, parent: Scope | None = None) -> None:
        self.module = module
        self.parent = parent
        self.names: dict[str, Value] = {}
        self.carried: frozenset[str] = frozenset()
        """Names of what was taken out of a cache."""
        self.rounds: frozenset[str] = frozenset()
        """Names that count the rounds of running loops."""
        self.links: dict[str, tuple[str, Value, Value, Value]] = {}
        """By name: the name that was asked for ``None``, what the first holds since, and where that was so and not."""
        self.tests: dict[str, Test] = {}
        """The conditions whose answers names hold, as long as nothing that they ask of has another name."""
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.owner: ClassDef | None = None
        self.this: Value = UNKNOWN

    def holder(self, name: str) -> Scope | None:
        """The nearest of this call and the ones around it that binds ``name``."""
        scope: Scope | None = self
        while scope is not None and name not in scope.names:
            scope = scope.parent
        return scope


def options(value: Value) -> tuple[Value, ...]:
    """The alternatives of a value."""
    return value.options if isinstance(value, Union) else (value,)


def is_none(value: Value) -> bool:
    """``value is None``; cheaper than to compare two records."""
    return type(value) is Const and value.value is None


def union(values: list[Value]) -> Value:
    """The join of several values; of none, ``Unknown``."""
    if not values:
        return UNKNOWN
    joined = values[0]
    for value in values[1:]:
        joined = join(joined, value)
    return joined


def join(left: Value, right: Value) -> Value:
    """The smallest value that covers both."""
    if left is right or left == right:
        return left
    merged: list[Value] = []
    for option in (*options(left), *options(right)):
        add_option(merged, option)
    if len(merged) > MAX_OPTIONS:
        return UNKNOWN
    return merged[0] if len(merged) == 1 else Union(tuple(merged))


def add_option(merged: list[Value], option: Value) -> None:
    """Add one alternative, widening it into a present one of its sort."""
    for at, present in enumerate(merged):
        if present == option:
            return
        wider = widen(present, option)
        if wider is not None:
            merged[at] = wider
            return
    merged.append(option)


def widen(left: Value, right: Value) -> Value | None:
    """One value for two of the same sort, or ``None`` where they must stay apart."""
    sort, other = type(left), type(right)
    if sort is not other:
        if sort in NUMBERS and other in NUMBERS:
            return join_numbers(left, right) if is_number(left) and is_number(right) else None
        match left, right:
            case (Text(), Const(value=str())) | (Const(value=str()), Text()):
                return Text()
            case _:
                return None
    wider = WIDER.get(sort)
    return wider(left, right) if wider is not None else None


def join_constants(left: Const, right: Const) -> Value | None:
    """Two numbers are some number; flags and texts stay apart."""
    return join_numbers(left, right) if is_number(left) and is_number(right) else None


def is_number(value: Value) -> bool:
    """True for host numbers (and not for flags, which must keep both answers apart)."""
    if isinstance(value, Number):
        return True
    return isinstance(value, Const) and isinstance(value.value, (int, float)) and not isinstance(value.value, bool)


def join_numbers(left: Value, right: Value) -> Number:
    """A number that may be either."""
    return Number(
        max(varies_of(left), varies_of(right)),
        deps_of(left) | deps_of(right),
        drawn=getattr(left, "drawn", None) or getattr(right, "drawn", None),
        read=getattr(left, "read", False) or getattr(right, "read", False),
        sure=min(getattr(left, "sure", Confidence.CERTAIN), getattr(right, "sure", Confidence.CERTAIN)),
    )


def join_tensors(left: Tensor, right: Tensor) -> Tensor:
    """A tensor that may be either."""
    return Tensor(
        memory=left.memory if left.memory is right.memory else Memory.EITHER,
        rank=left.rank if left.rank == right.rank else None,
        kind=left.kind if left.kind is right.kind else Kind.UNKNOWN,
        sure=min(left.sure, right.sure),
        home=left.home if left.home == right.home else None,
        view=left.view or right.view,
        extends=left.extends or right.extends,
        made=left.made if left.extends else right.made,
        ident=left.ident if left.ident == right.ident else 0,
        rows=left.rows if left.rows == right.rows else None,
        recorded=left.recorded and right.recorded,
        output=left.output and right.output,
        negative=left.negative or right.negative,
        varies=max(left.varies, right.varies),
        deps=left.deps | right.deps,
        parameter=left.parameter and right.parameter,
        argument=left.argument or right.argument,
        placed=left.placed and right.placed,
        array=left.array and right.array,
        drawn=left.drawn or right.drawn,
        stretched=left.stretched or right.stretched,
        kept=latest(left.kept, right.kept),
        strided=left.strided or right.strided,
    )


def latest(left: tuple[int, Site] | None, right: tuple[int, Site] | None) -> tuple[int, Site] | None:
    """The newer of two names: whether the older one is still in use is not known."""
    return max((one for one in (left, right) if one is not None), key=lambda one: one[0], default=None)


def join_sequences(left: Sequence, right: Sequence) -> Sequence:
    """A sequence that may be either: item by item where the lengths agree."""
    shape = left.shape and right.shape
    if left.items is not None and right.items is not None and len(left.items) == len(right.items):
        return Sequence(tuple(map(join, left.items, right.items)), shape=shape)
    return Sequence(None, join(element_of(left), element_of(right)), shape=shape)


NUMBERS = frozenset([Const, Number])
WIDER: dict[type[Value], Callable[..., Value | None]] = {
    Tensor: join_tensors,
    Const: join_constants,
    Number: join_numbers,
    Sequence: join_sequences,
    Text: lambda left, right: left,
    Range: lambda left, right: Range(max(left.varies, right.varies)),
    Device: lambda left, right: Device(Memory.EITHER),
    Dtype: lambda left, right: Dtype(Kind.UNKNOWN),
}
"""How two different values of one sort become one; what is not here stays apart."""


def element_of(sequence: Sequence) -> Value:
    """Any item of the sequence."""
    return union(list(sequence.items)) if sequence.items is not None else sequence.element


def varies_of(value: Value) -> Varies:
    """How often a host value changes; ``NEVER`` where that is not known."""
    match value:
        case Number():
            return value.varies
        case Union():
            return max(map(varies_of, value.options))
        case Sequence():
            return max(map(varies_of, value.items), default=Varies.NEVER) if value.items else varies_of(value.element)
        case Range():
            return value.varies
        case Tensor() if value.on_host:
            return value.varies
        case _:
            return Varies.NEVER


def deps_of(value: Value) -> frozenset[Home]:
    """The homes that a value was computed from."""
    match value:
        case Const() | Number():
            return value.deps
        case Tensor():
            return value.deps | ({value.home} if value.home else frozenset())
        case Union():
            return frozenset().union(*map(deps_of, value.options))
        case Sequence() if value.items:
            return frozenset().union(*map(deps_of, value.items))
        case _:
            return frozenset()


def tensor_in(value: Value) -> Tensor | None:
    """The tensor that a value is, less sure where it may be something else; ``None`` where it is none."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Union):
        found = next((option for option in value.options if isinstance(option, Tensor)), None)
        if found is not None:
            # Beside nothing, anything or a number it is likely a tensor; among the many sorts of a table it is a guess.
            plain = all(
                option == NONE or isinstance(option, (Tensor, Unknown)) or is_number(option) for option in value.options
            )
            return replace(found, sure=min(found.sure, Confidence.LIKELY if plain else Confidence.POSSIBLE))
    return None


def constant(value: Value) -> object:
    """The exact host value, or the ``Const`` class where there is none (since ``None`` is a value)."""
    return value.value if isinstance(value, Const) else Const


def int_constant(value: Value) -> int | None:
    """The exact integer, or ``None``."""
    found = constant(value)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
