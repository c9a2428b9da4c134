"""What a machine without a GPU can show: Dynamo's graphs, and the operators in them that Inductor never captures.

The step is compiled with a backend that decomposes as Inductor does, asks Inductor's own list, and then runs the graph
as it is. No kernel is made, so no compiler is needed and nothing is known of devices, partitions or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from capturelint.compiler.report import CompileEvent, CompileKind, once
from capturelint.logs.matcher import FRAME

REASON = "incompatible op"


@dataclass(slots=True)
class Inspector:
    """A backend of ``torch.compile`` that looks at each graph and runs it eagerly."""

    events: list[CompileEvent] = field(default_factory=list)

    def backend(self) -> Callable[..., object]:
        """The backend."""
        from torch._inductor.decomposition import select_decomp_table

        return aot_autograd(fw_compiler=self.compile_graph, decompositions=select_decomp_table)

    def compile_graph(self, graph: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
        """Keep the operators that cannot be captured."""
        for node in incompatible_nodes(graph):
            frames = FRAME.findall(node.meta.get("stack_trace") or "")
            file, line = frames[-1] if frames else (None, None)
            self.events.append(
                CompileEvent(CompileKind.PARTITION, REASON, file, int(line) if line else None, str(node.target))
            )
        boxed: Callable[..., object] = make_boxed_func(graph.forward)
        return boxed

    def found(self) -> tuple[CompileEvent, ...]:
        """Each operator once."""
        return once(self.events)


def incompatible_nodes(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Nodes that Inductor keeps out of graphs, without those that only use what such a node made."""
    tainted = set[torch.fx.Node]()
    for node in graph.graph.nodes:
        if tainted & set(node.all_input_nodes):
            tainted.add(node)
        elif is_incompatible(node) and not is_masked_fill(node):
            tainted.add(node)
            yield node


def is_incompatible(node: torch.fx.Node) -> bool:
    """Inductor's own list has the node."""
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    # The function reads nothing of a graph module but its nodes.
    alone = SimpleNamespace(graph=SimpleNamespace(nodes=[node]))
    return get_first_incompatible_cudagraph_node(alone) is not None  # type: ignore[arg-type]


def is_masked_fill(node: torch.fx.Node) -> bool:
    """``x[mask] = scalar``: on the list, but Inductor lowers it to a select (``index_put_as_masked_fill``)."""
    if not str(node.target).startswith("aten.index_put"):
        return False
    _, indices, value, *_ = node.args
    tensors = [index for index in indices if index is not None] if isinstance(indices, (list, tuple)) else []
    masks = [index for index in tensors if isinstance(index, torch.fx.Node)]
    known = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    return (
        len(masks) == 1
        and getattr(masks[0].meta.get("val"), "dtype", None) in (torch.bool, torch.uint8)
        and known is not None
        and known.numel() == 1
    )
