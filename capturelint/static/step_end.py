"""The end of a step: what only a whole run of recorded code can tell, of growth, rebinding, lazy building, streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capturelint.static.homes import Store, tensors_of
from capturelint.static.values import NONE, Memory
from capturelint.vocabulary import Confidence, EventKind

if TYPE_CHECKING:
    from capturelint.static.interpret import Interpreter


def finish_step(vm: Interpreter) -> None:
    """Emit what a whole run of recorded code showed: growth, rebinding, lazy building, unjoined streams."""
    for store in vm.step.stores:
        judge_store(vm, store)
    for side in vm.side_streams.values():
        if not side.joined:
            # Work that is put on it again under a condition may be what the last round of a loop leaves out.
            unsure = side.waits_elsewhere - vm.step.waits or (side.doubt and side.rejoined)
            sure = Confidence.POSSIBLE if unsure else Confidence.CERTAIN
            vm.emit(EventKind.STREAM, side.site, "unjoined", sure)
        elif not side.forked:
            vm.emit(EventKind.STREAM, side.site, "unforked", Confidence.LIKELY)
    vm.side_streams.clear()


def judge_store(vm: Interpreter, store: Store) -> None:
    """One tensor that was put into a slot that outlives the step."""
    put = tensors_of(vm.heap, store.new)
    if all(tensor.memory is Memory.HOST for tensor in put):
        return  # no graph holds the address of pageable memory
    holder = vm.heap.objects.get(store.home.owner) if not store.data else None
    if holder is not None and holder.slots.get(store.home.key) == store.old:
        return  # put back before the step ended
    grown = [t for t in put if t.extends is not None and t.made is not None]
    sure = Confidence.LIKELY if store.doubt else Confidence.CERTAIN
    if store.hidden:
        sure = Confidence.POSSIBLE
    for tensor in grown:
        assert tensor.made is not None
        vm.emit(EventKind.GROWTH, tensor.made, "concatenation", min(sure, tensor.sure), name=str(tensor.extends))
    if grown:
        return
    if store.outside:
        return
    if store.home.key == "append":
        vm.emit(EventKind.HOST_EFFECT, store.site, "append", min(sure, Confidence.LIKELY))
        return
    held = tensors_of(vm.heap, store.old)
    if not store.data and put and {t.ident for t in put} <= {t.ident for t in held if t.ident}:
        return  # the very tensors that it held
    old = {t.home for t in held if t.home}
    exchanged = {t.home for t in put if t.home is not None and not t.view} - old
    if (old | exchanged) & vm.step.used:
        # Under a host condition that nobody knows, steady decode may never come here (tables that grow on demand).
        sure = Confidence.POSSIBLE if store.doubt else sure
        vm.emit(EventKind.REBIND, store.site, "attribute", sure, name=str(store.home))
    elif store.old == NONE and isinstance(store.home.key, str):
        sure = Confidence.POSSIBLE if store.doubt else Confidence.LIKELY
        vm.emit(EventKind.LAZY_INIT, store.site, "first-use", sure, name=str(store.home))
