"""Memory that a graph reads and that nobody holds any more: which objects and tensors names still lead to.

The surprise: what the analyser loses sight of counts as held. Values that were given to code that nobody knows, or put
into objects that nobody knows, are remembered as lent, and no more is said of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from capturelint.static.events import Site
from capturelint.static.values import (
    BoundExternal,
    Function,
    Lambda,
    Method,
    Partial,
    Ref,
    Scope,
    Sequence,
    Tensor,
    Union,
    Value,
    is_none,
)

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


@dataclass(slots=True)
class Held:
    """Objects and tensors, by number, that something leads to."""

    objects: set[int] = field(default_factory=set)
    tensors: set[int] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    """The tensors that are no views: what a view is of may have other holders."""
    any: bool = False
    """True where one of several tensors is held, and nobody knows which."""


def held(vm: Interpreter, roots: Iterable[Value]) -> Held:
    """All that values lead to, through objects, bound methods and closures."""
    found, scopes, todo = Held(), set[int](), list(roots)
    while todo:
        match todo.pop():
            case Tensor(ident=ident, view=view, parameter=parameter):
                found.tensors.add(ident)
                found.whole |= set() if view else {ident}
                found.any = found.any or not (ident or parameter)
            case Ref(oid=oid) if oid not in found.objects:
                found.objects.add(oid)
                if (target := vm.heap.objects.get(oid)) is not None:
                    todo += [*target.slots.values(), *([target.element] if target.element is not None else [])]
            case Sequence() as sequence:
                todo += sequence.items if sequence.items is not None else (sequence.element,)
            case Union(options=alternatives):
                todo += alternatives
            case Method(function=function, owner=owner):
                todo += [function, owner]
            case BoundExternal(owner=owner):
                todo.append(owner)
            case Partial(function=function, args=args, kwargs=kwargs):
                todo += [function, *args, *(value for _, value in kwargs)]
            case (Function() | Lambda()) as closure if closure.scope is not None and id(closure.scope) not in scopes:
                scopes.add(id(closure.scope))
                todo += names_of(closure.scope)
            case _:
                pass
    return found


def names_of(scope: Scope | None) -> Iterator[Value]:
    """What the names of a call, and of the calls around it, stand for."""
    while scope is not None:
        yield from scope.names.values()
        scope = scope.parent


def reachable(vm: Interpreter, *more: Value) -> Held:
    """What the names of running calls and of modules, and ``more``, lead to."""
    calls = [*vm.stack, *vm.yielding]
    names = [value for call in calls for value in names_of(call.scope)]
    modules = [module for module in vm.index.modules.values() if module is not None]
    tops: list[Value] = [value for module in modules for value in module.globals.values()]  # type: ignore[misc]
    kept = [*vm.rebound.values(), *vm.instances.values(), *vm.remembered.values()]
    return held(vm, [*more, *names, *tops, *kept])


@dataclass(slots=True)
class Reads:
    """What graphs read, by number, and what became of it outside them."""

    used: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    """Tensors that recorded work reads, and in which graph."""
    weights: dict[int, set[int]] = field(default_factory=dict)
    """Modules whose parameters recorded work reads, and in which graphs."""
    named: dict[int, Site] = field(default_factory=dict)
    """Where a tensor, or what it is an item of, was given a name."""
    lent: Held = field(default_factory=Held)
    replaced: dict[int, Site] = field(default_factory=dict)
    """Tensors in whose place another one was put, and where: the graph still reads the old one."""
    renamed: set[int] = field(default_factory=set)
    """Tensors whose name was given to another one, which is looked at where names are bound."""
    gone: dict[int, Site] = field(default_factory=dict)
    """Objects and tensors that a name or attribute no longer leads to, with nothing in their place."""

    def on_use(self, tensor: Tensor, graph: int) -> None:
        """Recorded work reads a tensor that was there before."""
        self.used.setdefault(tensor.ident, (tensor, graph))

    def on_named(self, vm: Interpreter, value: Value, node: ast.AST) -> None:
        """A name is bound: to a tensor, or to a list or dict of them."""
        if isinstance(value, Tensor) and value.ident and value.home is None and not value.view:
            self.named[value.ident] = vm.site(node)

    def on_lend(self, vm: Interpreter, values: list[Value]) -> None:
        """Values are given to what nobody knows."""
        vm.untold += 1
        found = held(vm, values)
        self.lent.objects |= found.objects
        self.lent.tensors |= found.tensors

    def on_replaced(self, vm: Interpreter, old: Value | None, new: Value, node: ast.AST, *, name: bool = False) -> None:
        """A slot, or a name, that held something gets another value, or none."""
        if not isinstance(old, (Tensor, Ref)):
            return
        found = held(vm, [old])
        if is_none(new):
            numbers = found.objects if isinstance(old, Ref) else found.tensors
            self.gone.update(dict.fromkeys(numbers, vm.site(node)))
        elif name:
            self.renamed |= found.tensors
        else:
            self.replaced.update(dict.fromkeys(found.whole, vm.site(node)))

    def freed(self, vm: Interpreter) -> Iterator[tuple[Site, str]]:
        """Where memory was given up that a graph reads which is still there, and how.

        Of weights only where it was written that they go: a model that is dropped with the function that built it
        looks the same as one that is kept by what nobody sees.
        """
        read = [tensor for tensor, _ in self.used.values() if self.may_go(tensor)]
        owners = self.weights.keys() & self.gone.keys() - self.lent.objects
        if not read and not owners:
            return
        found = reachable(vm)
        for tensor in read if not found.any else ():
            if tensor.ident in found.tensors or self.used[tensor.ident][1] not in found.objects:
                continue
            if (site := self.replaced.get(tensor.ident)) is not None:
                yield site, "attribute"
            else:
                yield self.gone.get(tensor.ident) or self.named[tensor.ident], "freed"
        for owner in sorted(owners - found.objects):
            if self.weights[owner] & found.objects:
                yield self.gone[owner], "freed"

    def may_go(self, tensor: Tensor) -> bool:
        """A tensor of the device that had a name or was replaced, and that nobody else is known to have got."""
        if not tensor.on_device or tensor.parameter or tensor.output or tensor.ident in self.lent.tensors:
            return False
        if tensor.ident in self.replaced:
            return True
        return tensor.home is None and tensor.ident in self.named and tensor.ident not in self.renamed
