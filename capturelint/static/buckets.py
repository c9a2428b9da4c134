"""What a driver fills, pads and looks up around a graph: rows beyond the live batch, and sizes that have no bucket.

The sets of static inputs that are padded with live slots outlast the driver's first run: recorded code of the second
reads them.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from capturelint.static.events import Site
from capturelint.static.records import replace
from capturelint.static.values import Home, Tensor, Value, constant, int_constant
from capturelint.vocabulary import Confidence, EventKind, Phase

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


class Buckets:
    """The hooks for sizes and padding. ``negative`` and ``zero_padded`` are static inputs, by slot or by tensor."""

    def __init__(self, negative: set[Home | int], zero_padded: set[Home | int]) -> None:
        self.negative = negative
        self.zero_padded = zero_padded
        self.zeroed: set[Home | int] = set()
        self.live_zero: set[Home | int] = set()
        self.padded: set[int] = set()
        """Tensors that are a live zero and, behind the live rows, zeros."""
        self.capacity: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self.lookups: list[tuple[int, Site]] = []

    def on_use(self, tensor: Tensor) -> None:
        """Recorded device work reads so many rows of a static input."""
        self.rows[tensor.ident] = max(self.rows.get(tensor.ident, 0), tensor.rows or 0)

    def on_fill(self, target: Tensor, source: Tensor | None, value: Value, tail: bool = False) -> None:
        """A tensor, or a part of it, is filled: all of it, or its ``tail``, with zeros, the rest with a live zero?"""
        at = target.home or target.ident
        if source is not None and source.ident in self.padded:
            self.zero_padded.add(at)
        if not target.view or tail:
            self.zeroed.discard(at)
            if not tail:
                self.live_zero.discard(at)
            if source is None and constant(value) == 0:
                self.zeroed.add(at)
        elif source is not None and source.zero:
            self.live_zero.add(at)
        if at in self.zeroed & self.live_zero:
            self.zero_padded.add(at)

    def on_padded(self, made: Tensor) -> None:
        """A tensor with a live zero was lengthened by zeros."""
        self.padded.add(made.ident)

    def is_zero_padded(self, tensor: Tensor) -> bool:
        """Whether an index is padded with a slot that is live."""
        return bool({tensor.home, tensor.ident} & self.zero_padded)

    def on_indexed_write(self, vm: Interpreter, index: Tensor, node: ast.AST) -> None:
        """``x.index_copy_(0, index, rows)``: with an index whose padding is a live row."""
        if index.on_device and self.is_zero_padded(index):
            vm.emit(EventKind.PAD_WRITE, node, "zero-index", Confidence.LIKELY)

    def is_negative(self, tensor: Tensor) -> bool:
        """Whether an index is ever filled with negative numbers."""
        return tensor.negative or bool({tensor.home, tensor.ident} & self.negative)

    def on_negative(self, vm: Interpreter, target: Tensor) -> None:
        """A static input was filled with a negative number: an index that wraps."""
        self.negative.add(target.home or target.ident)
        if target.home is None:
            return
        found = vm.heap.objects.get(target.home.owner)
        held = found.slots.get(target.home.key) if found is not None else None
        if found is not None and isinstance(held, Tensor):
            slots = {**found.slots, target.home.key: replace(held, negative=True)}
            vm.heap.objects[target.home.owner] = replace(found, slots=slots)

    def on_rows(self, tensor: Tensor) -> None:
        """The first rows of a buffer are taken: a bucket's, out of what the buffer can hold."""
        if tensor.rows is not None:
            self.capacity[tensor.ident] = max(self.capacity.get(tensor.ident, 0), tensor.rows)

    def on_lookup(self, vm: Interpreter, values: list[Value], node: ast.AST, sizes: ast.expr) -> None:
        """A size is looked up in a list of sizes, in a way that may run off its end."""
        numbers = [int_constant(value) for value in values]
        known = [number for number in numbers if number is not None]
        if vm.recording or len(known) != len(numbers) or len(known) < 2 or is_guarded(vm, ast.unparse(sizes)):
            return
        self.lookups.append((max(known), vm.site(node)))

    def finish(self, vm: Interpreter, captured: bool) -> None:
        """The driver is over: is there a batch that fits the buffer and no bucket?"""
        for largest, site in self.lookups:
            if captured and any(self.rows.get(at) == largest < most for at, most in self.capacity.items()):
                vm.emit(EventKind.BUCKET_GAP, site, "lookup", Confidence.LIKELY, name=str(largest), phase=Phase.REPLAY)


def is_guarded(vm: Interpreter, text: str) -> bool:
    """Whether the running function or its caller looks at a limit first, or catches what a failed look-up raises."""
    trees = [tree for call in vm.stack[-2:] if (tree := getattr(call.definition, "node", None)) is not None]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    limits = [node.test for node in nodes if isinstance(node, (ast.If, ast.IfExp, ast.Assert))]
    return any(isinstance(node, ast.Try) for node in nodes) or any(
        isinstance(node, ast.Compare) and (text in ast.unparse(node) or is_ordering(node))
        for test in limits
        for node in ast.walk(test)
    )


def is_ordering(node: ast.Compare) -> bool:
    """``a < b`` and its like."""
    return isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
