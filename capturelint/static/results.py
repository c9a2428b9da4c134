"""What a torch operation returns: memory, rank, element kind, and whether it is longer than the home it came from."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capturelint.static import attributes, torch_calls, transfers
from capturelint.static.records import quick, replace
from capturelint.static.values import (
    NONE,
    UNKNOWN,
    Const,
    Dtype,
    Home,
    Kind,
    Memory,
    Number,
    Ref,
    Sequence,
    Tensor,
    Value,
    constant,
    deps_of,
    element_of,
    int_constant,
    options,
    tensor_in,
    varies_of,
)
from capturelint.vocabulary import Confidence, Phase, Varies

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter

MAX_DEPS = 12
MAX_PARTS = 8
PADS = ("pad", "nn.functional.pad")


def result(
    vm: Interpreter,
    operands: list[Value],
    node: ast.AST,
    rank: int | None = None,
    kind: Kind | None = None,
    **more: object,
) -> Tensor:
    """A new tensor computed from operands: on the device where one operand is."""
    flat = torch_calls.flatten(vm, operands)
    tensors = torch_calls.tensors_in(flat)
    torch_calls.use(vm, tensors)
    devices = [t for t in tensors if t.memory is Memory.DEVICE]
    eithers = [t for t in tensors if t.memory is Memory.EITHER]
    memory = Memory.DEVICE if devices else Memory.EITHER if eithers else Memory.HOST
    deps = frozenset().union(*map(deps_of, flat)) if flat else frozenset()
    if memory is not Memory.HOST and vm.phase is not Phase.SET_UP:
        vm.step.work += 1
    if memory is not Memory.HOST and vm.recording:
        fork(vm)
    deciding = devices or eithers or tensors
    on_host = memory is Memory.HOST
    made = Tensor(
        memory,
        rank,
        kind or (tensors[0].kind if tensors else Kind.UNKNOWN),
        max([t.sure for t in deciding], default=Confidence.CERTAIN),
        ident=vm.ident(),
        recorded=vm.recording,
        output=vm.recording,
        negative=any(t.negative for t in tensors),
        varies=max(map(varies_of, flat), default=Varies.NEVER) if on_host else Varies.NEVER,
        stretched=any(t.stretched for t in tensors),
        array=bool(tensors) and all(t.array for t in tensors),
        drawn=next((t.drawn for t in tensors if t.drawn), None) if on_host else None,
        deps=frozenset(sorted(deps, key=str)[:MAX_DEPS]) if len(deps) > MAX_DEPS else deps,
    )
    made = replace(made, **more) if more else made  # type: ignore[arg-type]
    if vm.driver is not None and memory is not Memory.HOST:
        vm.driver.on_derive(vm, made, tensors)
    return made


def fork(vm: Interpreter) -> None:
    """Device work under ``with torch.cuda.stream(side)`` while recording."""
    if not vm.stream_stack or (found := vm.side_streams.get(vm.stream_stack[-1])) is None:
        return
    found.joined, found.doubt = False, vm.doubt
    if not (found.waits or {vm.stream_stack[-1], UNKNOWN} & vm.step.forked):
        found.forked = False


def operate(
    vm: Interpreter,
    node: ast.AST,
    operands: list[Value],
    *,
    in_place: Tensor | None = None,
    matmul: bool = False,
    compare: bool = False,
    op: object = None,
) -> Value:
    """An arithmetic operator on at least one tensor."""
    tensors = torch_calls.tensors_in(operands)
    for operand in operands if not all(t.on_host for t in tensors) else ():
        torch_calls.report_varying(vm, operand, node, "kernel-argument")
    ranks = [t.rank for t in tensors]
    rank = None if None in ranks or matmul else max(r for r in ranks if r is not None)
    kind = Kind.BOOL if compare else Kind.FLOAT if isinstance(op, ast.Div) else promoted(operands)
    # A scalar in host memory combines with device tensors, and what nobody knows may be one.
    lone = all(t.on_host and not t.rank and not t.array for t in tensors) and UNKNOWN in operands
    made = result(vm, operands, node, rank, kind)
    made = replace(made, memory=Memory.EITHER, rank=None) if lone else made
    if in_place is not None:
        torch_calls.mutate(vm, in_place, node, made)
        return in_place
    if keeps_zero(op, operands):
        made = replace(made, zero=True)
    if isinstance(made, Tensor) and (compare or isinstance(op, (ast.Mod, ast.BitAnd, ast.Invert))):
        wraps = isinstance(op, ast.Mod)
        return replace(made, negative=made.negative and wraps)
    return made


def keeps_zero(op: object, operands: list[Value]) -> bool:
    """Whether the item that is 0 still is: a page's number times its size, the place in it added while that is 0."""
    if not any(isinstance(operand, Tensor) and operand.zero for operand in operands):
        return False
    others = [operand for operand in operands if not (isinstance(operand, Tensor) and operand.zero)]
    return isinstance(op, ast.Mult) or (isinstance(op, ast.Add) and all(constant(operand) == 0 for operand in others))


def promoted(operands: list[Value]) -> Kind:
    """The element kind of arithmetic: the highest of its operands, Python's numbers among them."""
    each = [option for value in operands for option in options(value)]
    kinds = {option.kind for option in each if isinstance(option, Tensor)}
    numbers = {transfers.kind_of(option) for option in each if not isinstance(option, Tensor)}
    if kinds == {Kind.BOOL} and Kind.UNKNOWN in numbers:
        return Kind.UNKNOWN
    kinds |= numbers - {Kind.UNKNOWN}
    return next(kind for kind in (Kind.FLOAT, Kind.UNKNOWN, Kind.INT, Kind.BOOL) if kind in kinds)


def row(vm: Interpreter, tensor: Tensor) -> Value:
    """One element along the first dimension: a view."""
    rank = tensor.rank - 1 if tensor.rank else None
    return replace(tensor, rank=rank, view=True, extends=None, rows=None)


def read_value(vm: Interpreter, name: str, tensors: list[Tensor]) -> Value:
    """``item``, ``tolist``, ``numpy``: host values that were on the device a moment ago."""
    on_device = any(t.on_device for t in tensors)
    varies = Varies.PER_STEP if on_device else max((t.varies for t in tensors), default=Varies.NEVER)
    deps = frozenset() if on_device else frozenset().union(*(t.deps for t in tensors)) if tensors else frozenset()
    drawn = next((t.drawn for t in tensors if t.drawn), None)
    number = Number(varies, deps, drawn, read=on_device or varies is not Varies.PER_STEP)
    if name == "numpy" and tensors:
        return replace(tensors[0], memory=Memory.HOST, array=True, placed=True)
    return number if name == "item" else vm.new_list(Sequence(None, number))


def host_result(vm: Interpreter, name: str, args: list[Value], tensors: list[Tensor]) -> Value:
    """Metadata."""
    if name in ("dim", "ndimension") and tensors and tensors[0].rank is not None:
        return Const(tensors[0].rank)
    if name in ("numel", "nelement"):
        return Number(Varies.PER_BUCKET)
    if name == "is_tensor" and args:
        return Const(isinstance(args[0], Tensor)) if not isinstance(args[0], type(UNKNOWN)) else Number()
    if name in ("equal", "allclose", "is_nonzero"):
        return Number(Varies.PER_STEP, read=True)
    return Number()


def size_call(args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``size()``, ``size(d)``, ``stride()``."""
    tensor = tensor_in(args[0]) if args else None
    shape = attributes.shape_of(tensor) if tensor is not None else Sequence(None, Number(Varies.PER_BUCKET), shape=True)
    dim = int_constant(args[1]) if len(args) > 1 else int_constant(kwargs.get("dim", UNKNOWN))
    if len(args) == 1 and "dim" not in kwargs:
        return shape
    if shape.items is not None and dim is not None and -len(shape.items) <= dim < len(shape.items):
        return shape.items[dim]
    return element_of(shape)


@quick
@dataclass(frozen=True, slots=True)
class Applied:
    """A torch operation on its arguments.

    ``flat`` are the tensors among the positional arguments, lists taken apart, and ``lead`` is the one that the result
    is shaped after. ``kind`` is the element kind where the operation settles it.
    """

    name: str
    args: list[Value]
    kwargs: dict[str, Value]
    node: ast.AST
    lead: Tensor
    flat: list[Tensor]
    kind: Kind | None

    @property
    def operands(self) -> list[Value]:
        """Every argument."""
        return [*self.args, *self.kwargs.values()]

    @property
    def dim(self) -> Value:
        """The dimension that is asked for; ``None`` where none is."""
        return self.kwargs.get("dim", self.args[1] if len(self.args) > 1 else NONE)

    def made(self, vm: Interpreter, rank: int | None, kind: Kind | None = None) -> Tensor:
        """A tensor computed from every argument."""
        return result(vm, self.operands, self.node, rank, kind)


def shaped(
    vm: Interpreter, name: str, sorts: frozenset[str], args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """The result of an operation that makes a tensor, or several."""
    flat = torch_calls.tensors_in(torch_calls.flatten(vm, args))
    lead = (tensor_in(args[0]) if args else None) or next(iter(flat), None)
    if lead is None:
        lead = torch_calls.tensors_in(torch_calls.flatten(vm, list(kwargs.values())))[0]
    kind = Kind.BOOL if "bool" in sorts else Kind.INT if "int" in sorts else None
    if name == "where" and len(args) > 2:
        kind = chosen_kind(args[1], args[2])  # of the values, not of the mask
    if name in COUNTS and lead.kind is Kind.BOOL and kind is None:
        kind = Kind.INT
    call = Applied(name, args, kwargs, node, lead, flat, kind)
    if is_index_list(call):
        return Sequence(None, call.made(vm, 1, Kind.INT))
    for sort, shape in SHAPES.items():
        if sort in sorts:
            return shape(vm, call)
    if name in CONCATENATIONS:
        return concatenated(vm, call.made(vm, lead.rank, kind), flat, node)
    if name in PADS:
        return concatenated(vm, padded(vm, lead, args, kwargs, call.made(vm, lead.rank, kind)), [lead, lead], node)
    if "same" in sorts:
        return like_lead(vm, call)
    return broadcast(vm, call)


def is_index_list(call: Applied) -> bool:
    """``where(mask)`` and ``nonzero(x, as_tuple=True)`` give the indices, a tensor for each dimension."""
    if call.name == "where":
        return len(call.operands) == 1
    return call.name == "nonzero" and constant(call.kwargs.get("as_tuple", NONE)) is True


def pair(vm: Interpreter, call: Applied) -> Value:
    """``max(dim)``, ``topk``, ``sort``: values and indices; ``max()`` of everything is 0-d."""
    name, lead = call.name, call.lead
    if name in ("max", "min", "median", "mode") and call.dim == NONE:
        return call.made(vm, 0)
    if name in ("max", "min") and tensor_in(call.dim) is not None:
        return call.made(vm, lead.rank)
    keeps = name in ("sort", "topk", "cummin") or constant(call.kwargs.get("keepdim", NONE)) is True
    values = call.made(vm, lead.rank if keeps else lead.rank - 1 if lead.rank else None)
    if name in ("var_mean", "std_mean", "aminmax"):
        return Sequence((values, values))
    return Sequence((values, replace(values, kind=Kind.INT, ident=vm.ident())))


def parts(vm: Interpreter, call: Applied) -> Value:
    """``chunk``, ``split``, ``unbind``: views, as many as a small number says."""
    rank = call.lead.rank
    part = as_view(call.made(vm, (rank - 1 if rank else None) if call.name == "unbind" else rank), call.lead)
    count = int_constant(call.args[1]) if call.name in ("chunk", "tensor_split") and len(call.args) > 1 else None
    return Sequence((part,) * count) if count and count <= MAX_PARTS else Sequence(None, part)


def reduced(vm: Interpreter, call: Applied) -> Value:
    """``sum``, ``argmax``, ``select``: without the dimension that is asked for."""
    made = call.made(vm, reduced_rank(vm, call.lead, call.dim, call.kwargs), call.kind)
    return as_view(made, call.lead) if call.name == "select" else made


def multiplied(vm: Interpreter, call: Applied) -> Value:
    """Products of matrices."""
    keeps = call.name in ("matmul", "mm", "bmm") and call.lead.rank != 1
    return call.made(vm, call.lead.rank if keeps else None)


def widened(vm: Interpreter, call: Applied) -> Value:
    """``stack``, ``unsqueeze``, ``embedding``: one dimension more."""
    embeds = call.name.endswith("embedding")
    base = tensor_in(call.args[0]) if call.name != "stack" and call.args else next(iter(call.flat), None)
    rank = base.rank + 1 if base is not None and base.rank is not None else None
    made = call.made(vm, rank, Kind.FLOAT if embeds else call.kind)
    if call.name == "stack":
        return concatenated(vm, made, call.flat, call.node)
    return as_view(made, call.lead) if call.name == "unsqueeze" else made


def squeezed(vm: Interpreter, call: Applied) -> Value:
    """``squeeze``: one dimension fewer where one is named."""
    rank = call.lead.rank - 1 if call.lead.rank and int_constant(call.dim) is not None else None
    return as_view(call.made(vm, rank, call.kind), call.lead)


def resized(vm: Interpreter, call: Applied) -> Value:
    """``view``, ``expand``, ``new_zeros``: as many dimensions as sizes are given."""
    rank = transfers.size_rank(vm, call.args[1:]) if len(call.args) > 1 else None
    if call.name.startswith("new_"):
        kind = transfers.kind_argument(call.kwargs, call.lead.kind)
        return result(vm, call.args[:1], call.node, rank, kind)
    return as_view(call.made(vm, rank, call.kind), call.lead)


def flattened(vm: Interpreter, call: Applied) -> Value:
    """``flatten`` and ``ravel``: one dimension, unless bounds are given."""
    is_whole = len(call.args) == 1 and not call.kwargs and call.name != "unflatten"
    return as_view(call.made(vm, 1 if is_whole else None), call.lead)


def like_lead(vm: Interpreter, call: Applied) -> Value:
    """Operations on each element, and views of the same rank."""
    name, lead = call.name, call.lead
    if name.endswith("_like"):
        return like(vm, name, lead, call.args, call.kwargs)
    made = call.made(vm, lead.rank, call.kind or lead.kind)
    if name in NON_NEGATIVE:
        made = replace(made, negative=False)
    if name == "contiguous":
        lead = replace(lead, strided=False)
    return as_view(made, lead) if name in VIEWS else made


def broadcast(vm: Interpreter, call: Applied) -> Value:
    """Operations on several tensors, as wide as the widest where they broadcast."""
    if len(call.flat) == 1 and call.name != "where":
        made = call.made(vm, None, call.kind)
        return as_view(made, call.lead) if call.name in VIEWS else made
    ranks = [t.rank for t in call.flat]
    widest = None if None in ranks else max((r for r in ranks if r is not None), default=None)
    made = call.made(vm, widest if call.name in BROADCAST else None, call.kind)
    return replace(made, negative=False) if call.name in NON_NEGATIVE else made


SHAPES: dict[str, Callable[[Interpreter, Applied], Value]] = {
    "pair": pair,
    "parts": parts,
    "reduce": reduced,
    "matmul": multiplied,
    "wider": widened,
    "squeeze": squeezed,
    "view": resized,
    "flatten": flattened,
}
"""How the results of operations of a sort are shaped; of an operation of several sorts, the first counts."""


def padded(vm: Interpreter, lead: Tensor, args: list[Value], kwargs: dict[str, Value], made: Tensor) -> Tensor:
    """``F.pad(x, pad, mode, value)``: what stands in the rows behind those of ``x``."""
    number = constant(args[3] if len(args) > 3 else kwargs.get("value", Const(0)))
    if number in (0, None) and lead.zero and vm.driver is not None:
        vm.untold += 1
        vm.driver.buckets.on_padded(made)
    return replace(made, negative=made.negative or (isinstance(number, (int, float)) and number < 0))


def chosen_kind(left: Value, right: Value) -> Kind:
    """The element kind of ``where(mask, left, right)``."""
    kinds = {t.kind if (t := tensor_in(value)) is not None else transfers.kind_of(value) for value in (left, right)}
    if Kind.FLOAT in kinds:
        return Kind.FLOAT
    return kinds.pop() if len(kinds) == 1 else Kind.INT if kinds == {Kind.INT, Kind.BOOL} else Kind.UNKNOWN


CONCATENATIONS = frozenset({"cat", "concat", "concatenate", "vstack", "hstack", "dstack", "row_stack", "column_stack"})
NON_NEGATIVE = frozenset({"abs", "clamp", "clamp_min", "relu", "where", "masked_fill", "maximum", "square"})
"""Operations by which code replaces the negative slots of padded rows."""
COUNTS = frozenset({"sum", "cumsum", "prod", "cumprod", "nansum"})
"""Operations that give whole numbers for flags."""
VIEWS = frozenset(
    [
        "adjoint",
        "as_strided",
        "diagonal",
        "imag",
        "moveaxis",
        "swapdims",
        "unfold",
        "view_as_complex",
        "view_as_real",
        "transpose",
        "permute",
        "swapaxes",
        "movedim",
        "narrow",
        "expand_as",
        "view_as",
        "reshape_as",
        "t",
        "detach",
        "contiguous",
        "requires_grad_",
    ]
)
BROADCAST = frozenset(
    [
        "where",
        "add",
        "sub",
        "mul",
        "div",
        "pow",
        "maximum",
        "minimum",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "fmod",
        "remainder",
        "true_divide",
        "floor_divide",
        "atan2",
        "masked_fill",
        "lerp",
        "isclose",
        "bitwise_xor",
        "isin",
    ]
)


def as_view(made: Value, lead: Tensor) -> Value:
    """A result that shares memory with its source keeps the source's home."""
    if isinstance(made, Tensor):
        return replace(made, home=lead.home, view=True, kind=lead.kind, ident=lead.ident, recorded=lead.recorded,
                       output=lead.output, negative=lead.negative, extends=lead.extends, made=lead.made,
                       memory=lead.memory, strided=lead.strided)  # fmt: skip
    return made


def concatenated(vm: Interpreter, made: Value, parts: list[Tensor], node: ast.AST) -> Value:
    """A concatenation with a whole home among its parts is longer than that home."""
    homes = [t.home for t in parts if t.home is not None and not t.view and not t.parameter]
    if isinstance(made, Tensor) and homes and len(parts) > 1 and vm.phase is not Phase.SET_UP:
        return replace(made, extends=homes[0], made=vm.site(node))
    extended = next((t for t in parts if t.extends is not None), None)
    if isinstance(made, Tensor) and extended is not None:
        return replace(made, extends=extended.extends, made=extended.made)
    return made


def like(vm: Interpreter, name: str, lead: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``zeros_like``, ...: a new tensor beside another one."""
    number = constant(args[1]) if name == "full_like" and len(args) > 1 else None
    if lead.memory is not Memory.HOST and vm.phase is not Phase.SET_UP:
        vm.step.work += 1
    return replace(
        lead,
        memory=transfers.device_argument(vm, kwargs, lead.memory),
        kind=transfers.kind_argument(kwargs, lead.kind),
        home=None,
        view=False,
        extends=None,
        ident=vm.ident(),
        recorded=vm.recording,
        output=vm.recording,
        negative=isinstance(number, (int, float)) and number < 0,
        deps=frozenset(),
        parameter=False,
        argument=False,
    )


def reduced_rank(vm: Interpreter, lead: Tensor, dim: Value, kwargs: dict[str, Value]) -> int | None:
    """The rank after a reduction."""
    if dim == NONE or isinstance(dim, Dtype):
        return 0
    if constant(kwargs.get("keepdim", NONE)) is True:
        return lead.rank
    if lead.rank is None:
        return None
    items = vm.items(dim)
    removed = len(items) if items is not None else 1 if isinstance(dim, (Const, Number)) else None
    return lead.rank - removed if removed is not None and removed <= lead.rank else None


def call_module(
    vm: Interpreter, owner: Ref, cls: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """What the ``forward`` of a ``torch.nn`` class does: of an instance of it, or of a class derived from it."""
    name = cls.rpartition(".")[2]
    for value in [*args, *kwargs.values()]:
        torch_calls.report_varying(vm, value, node, "kernel-argument")
    flat = torch_calls.tensors_in(torch_calls.flatten(vm, [*args, *kwargs.values()]))
    if not flat:
        return UNKNOWN
    lead = flat[0]
    weight = Tensor(vm.module_memory, 2, Kind.FLOAT, home=Home(owner.oid, "weight"), parameter=True)
    operands: list[Value] = [*args, *kwargs.values()]
    if vm.driver is not None:
        vm.driver.on_load(vm, owner, "weight", weight)
        vm.driver.on_load(vm, owner, "bias", replace(weight, home=Home(owner.oid, "bias")))
    if name in ("Linear", "Embedding", "LayerNorm", "RMSNorm", "GRUCell", "LSTMCell", "Conv1d", "Conv2d"):
        operands.append(weight)
    sort = vm.catalog.modules.get(name)
    match sort:
        case "same":
            return result(vm, operands, node, lead.rank, Kind.FLOAT)
        case "wider":
            return result(vm, operands, node, lead.rank + 1 if lead.rank is not None else None, Kind.FLOAT)
        case "pair":
            made = result(vm, operands, node, lead.rank, Kind.FLOAT)
            return Sequence((made, made))
        case "state":
            made = result(vm, operands, node, lead.rank, Kind.FLOAT)
            return Sequence((made, Sequence((made, made)) if name == "LSTM" else made))
        case _:
            return result(vm, operands, node, None)
