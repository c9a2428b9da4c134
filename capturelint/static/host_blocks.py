"""Pinned host memory that copies read or fill while the host goes on: who waits, and who does not."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from capturelint.static.index import FunctionDef
from capturelint.static.values import Tensor
from capturelint.vocabulary import Confidence, EventKind, Phase

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


@dataclass(slots=True)
class HostBlocks:
    """The hooks. Blocks are known by their tensors' numbers."""

    in_flight: set[int] = field(default_factory=set)
    """Blocks that a copy to the device may still read."""
    fetched: dict[int, object] = field(default_factory=dict)
    """Blocks that the device fills, and the function that asked for it."""

    def on_staged(self, vm: Interpreter, source: Tensor) -> None:
        """A copy from pinned memory is under way until somebody waits."""
        if not vm.recording and source.ident:
            vm.untold += 1
            self.in_flight.add(source.ident)

    def on_wait(self) -> None:
        """The host waits for the device: no copy is under way."""
        self.in_flight.clear()
        self.fetched.clear()

    def on_fetched(self, vm: Interpreter, target: Tensor) -> None:
        """The device copies into a pinned block, and nobody has waited for it."""
        if not vm.recording and target.ident:
            vm.untold += 1
            self.fetched[target.ident] = vm.stack[-1].definition

    def on_host_read(self, vm: Interpreter, tensor: Tensor, node: ast.AST) -> None:
        """The host looks at a block: does none of the functions around it and around the copy wait for anything?"""
        if tensor.ident not in self.fetched:
            return
        around = {self.fetched[tensor.ident], *(call.definition for call in vm.stack[1:])}
        if all(isinstance(definition, FunctionDef) and not waits(definition) for definition in around):
            vm.emit(EventKind.STAGING, node, "unread", Confidence.LIKELY, phase=Phase.RECORDED)


@cache
def waits(definition: FunctionDef) -> bool:
    """Whether a function may wait for the device, by an object that nobody knows."""
    names = ("synchronize", "query", "wait", "result")
    return any(isinstance(node, ast.Attribute) and node.attr in names for node in ast.walk(definition.node))
