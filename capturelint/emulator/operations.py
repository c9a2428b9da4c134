"""What one ATen overload does with memory, read once from its schema and the table in ``rules/aten.yaml``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from capturelint.catalog import AtenRow, load_aten
from capturelint.emulator.kernels import COMPOSITES, Kernel, foreign, python_body
from capturelint.emulator.memory import tensors_in

if TYPE_CHECKING:
    from capturelint.emulator.machine import Machine

OpOverload = torch._ops.OpOverload

# The schemas of the old batch norms do not say that they write the running statistics.
UNDECLARED_WRITES = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::_batch_norm_impl_index": ("running_mean", "running_var"),
}
TRANSFERS = frozenset({"aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::copy"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One overload, which this keeps alive: its name, the arguments it writes, and what CUDA refuses about it."""

    name: str
    overload: Any
    kernel: Kernel
    body: Callable[..., Any] | None
    is_view: bool
    is_plain_view: bool
    is_composite: bool
    is_divided: bool
    is_random: bool
    is_transfer: bool
    allocates_undefined: bool
    writes: tuple[str, ...]
    arguments: tuple[str, ...]
    host_arguments: frozenset[str]
    refusals: tuple[AtenRow, ...]

    @property
    def is_examined(self) -> bool:
        """Whether CUDA refuses some of these calls."""
        return bool(self.refusals) or self.is_transfer

    def argument(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """The value passed for ``name``, or None."""
        if name in kwargs:
            return kwargs[name]
        position = self.arguments.index(name) if name in self.arguments else len(args)
        return args[position] if position < len(args) else None

    def written(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[torch.Tensor]:
        """The tensors that the call writes in place."""
        if args and isinstance(args[0], torch.Tensor) and self.writes == self.arguments[:1]:
            return [args[0]]
        return list(tensors_in([self.argument(name, args, kwargs) for name in self.writes]))

    def draws(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Whether the call takes random numbers: attention takes them for dropout only."""
        return self.is_random and ("dropout_p" not in self.arguments or bool(self.argument("dropout_p", args, kwargs)))


class Operations:
    """What is known of overloads, by ``id``: to hash one is a call of Python."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.known: dict[int, Operation] = {}

    @cached_property
    def rows(self) -> dict[str, tuple[AtenRow, ...]]:
        """Refusals by operator name, with and without overload."""
        grouped: dict[str, tuple[AtenRow, ...]] = {}
        for row in load_aten().refusals:
            for name in row.operators:
                grouped[name] = (*grouped.get(name, ()), row)
        return grouped

    def read(self, overload: OpOverload) -> Operation:
        """Read the schema of ``overload``, once."""
        schema = overload._schema
        written = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
        base, full = schema.name, f"{schema.name}.{schema.overload_name or 'default'}"
        host = load_aten().host_arguments
        function = overload._op if base.startswith("aten::") else foreign(overload._op, self.machine)
        body = COMPOSITES.get(full) or python_body(overload)
        refusals = self.rows.get(base, ()) + self.rows.get(full, ())
        found = self.known[id(overload)] = Operation(
            name=full,
            overload=overload,
            kernel=Kernel(function, full, self.machine),
            body=body,
            is_view=is_view(overload),
            is_plain_view=is_plain_view(overload) and body is None and not refusals,
            is_composite=is_composite(overload),
            is_divided=body is not None or is_composite(overload),
            is_random=torch.Tag.nondeterministic_seeded in overload.tags,
            is_transfer=base in TRANSFERS,
            allocates_undefined=base.removeprefix("aten::")
            in {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"},
            writes=written or UNDECLARED_WRITES.get(base, ()),
            arguments=tuple(a.name for a in schema.arguments),
            host_arguments=host.get(full, frozenset()) | host.get(base, frozenset()),
            refusals=refusals,
        )
        return found


def opaque(function: Any, body: Callable[..., Any] | None, machine: Machine) -> Operation:
    """A higher-order operator: nothing is known of it but its results, and ``body`` where we have one."""
    name = str(function)
    return Operation(
        name=name,
        overload=function,
        kernel=Kernel(function, name, machine),
        body=body,
        is_view=False,
        is_plain_view=False,
        is_composite=False,
        is_divided=body is not None,
        is_random=False,
        is_transfer=False,
        allocates_undefined=False,
        writes=(),
        arguments=(),
        host_arguments=frozenset(),
        refusals=(),
    )


def launch_of(name: str, launch: Callable[..., Any], machine: Machine, args: tuple[Any, ...]) -> Operation:
    """A kernel that is given these arguments and may write each of them; ``launch`` runs it on a CPU's tensors."""
    names = tuple(str(position) for position in range(len(args)))
    return replace(
        opaque(launch, None, machine),
        name=name,
        kernel=Kernel(foreign(launch, machine), name, machine),
        writes=names,
        arguments=names,
    )


def is_view(overload: OpOverload) -> bool:
    """Whether it makes or changes a view and writes no memory."""
    if torch.Tag.inplace_view in overload.tags:
        return overload._schema.name != "aten::resize_"
    infos = [argument.alias_info for argument in overload._schema.arguments]
    return any(info is not None and not info.is_write for info in infos)


def is_plain_view(overload: OpOverload) -> bool:
    """Whether it is one of torch's own that makes views of one tensor, wherever that lives."""
    kinds = [str(argument.type) for argument in overload._schema.arguments]
    takes_one = kinds.count("Tensor") == 1 and not {"Device", "Optional[Device]"} & set(kinds)
    return takes_one and overload.namespace == "aten" and is_view(overload) and not is_composite(overload)


def is_composite(overload: OpOverload) -> bool:
    """Whether it is made of other operations only; in inference mode it arrives undivided."""
    name = overload.name()
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        name, "CompositeImplicitAutograd"
    ) and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
