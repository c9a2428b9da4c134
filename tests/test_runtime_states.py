import functools
import random
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from capturelint.runtime.homes import global_slots, homes, lengths, numbers  # noqa: E402
from capturelint.runtime.states import can_duplicate, duplicate, origin, seeded  # noqa: E402


class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.register_buffer("k", torch.zeros(2))
        self.loose = torch.ones(2)
        self.layers = {0: (torch.zeros(1), [torch.ones(1)])}
        self.size = 3


def names(state):
    return {home.name for home in homes(state)}


def test_homes_are_named_as_the_code_reads_them():
    assert names(Cache()) == {
        "state.linear.weight",
        "state.linear.bias",
        "state.k",
        "state.loose",
        "state.layers[0][0]",
        "state.layers[0][1][0]",
    }


class LazyDict(dict):
    def items(self):
        raise ImportError("what it would load cannot be imported")

    __iter__ = values = keys = __len__ = items


class LazyList(list):
    def __iter__(self):
        raise ImportError("what it would load cannot be imported")

    __len__ = __iter__


def test_looking_at_containers_runs_none_of_their_code():
    module = ModuleType("settings")
    module.lazy = LazyDict(a=torch.zeros(1), b=LazyList([torch.ones(1)]))
    assert [slot.name for slot in global_slots([module], torch.Tensor)] == ["lazy['a']", "lazy['b'][0]"]
    assert [slot.value for slot in lengths(SimpleNamespace(held=module.lazy))] == [2, 1]


def test_homes_are_found_in_closures_partials_and_bound_methods():
    hidden = torch.zeros(1)
    state = SimpleNamespace(f=lambda: hidden, g=functools.partial(print, torch.ones(1)), m=Cache().forward)
    assert names(state) >= {"state.f.<hidden>", "state.g.args[0]", "state.m.__self__.k"}


def test_homes_are_found_in_slots_and_cycles_end():
    class Slotted:
        __slots__ = ("me", "t")

    state = Slotted()
    state.t, state.me = torch.zeros(1), state
    assert names(state) == {"state.t"}


def test_a_slot_is_read_again_through_whatever_stands_on_the_way():
    state = SimpleNamespace(layers=[(torch.zeros(1),)])
    (home,) = homes(state)
    state.layers[0] = (torch.ones(1),)
    assert home.slot.has_changed()


def test_a_number_changes_when_it_is_not_equal():
    state = Cache()
    slot = next(slot for slot in numbers(state) if slot.name == "state.size")
    assert not slot.has_changed()
    state.size += 1
    assert slot.has_changed()


def test_a_copy_shares_parameters_and_nothing_else():
    state = Cache()
    twin = duplicate(state)
    assert twin.linear.weight is state.linear.weight
    assert twin.k is not state.k
    assert twin.k.data_ptr() != state.k.data_ptr()


def test_a_state_that_shares_a_buffer_through_a_closure_is_built_again():
    hidden = torch.zeros(2)
    assert can_duplicate(Cache())
    assert not can_duplicate(SimpleNamespace(read=lambda: hidden))


def test_a_state_that_cannot_be_copied_is_built_again():
    assert not can_duplicate(SimpleNamespace(source=(number for number in range(3)), t=torch.zeros(1)))


def test_any_number_is_a_seed():
    pytest.importorskip("numpy")
    with seeded(2**40):
        pass


def test_a_healthy_state_is_built_once():
    built = []
    source = origin(lambda: built.append(1) or Cache())
    first, second = source.fresh(), source.fresh()
    assert len(built) == 1
    assert first is not second


def test_every_fresh_state_starts_from_the_same_random_numbers():
    torch.manual_seed(3)
    random.seed(3)
    source = origin(Cache)
    source.fresh()
    first = (torch.rand(1).item(), random.random())
    source.fresh()
    assert (torch.rand(1).item(), random.random()) == first


def test_a_state_that_is_built_again_gets_the_same_weights():
    torch.manual_seed(4)
    source = origin(Cache).rebuilt()
    assert torch.equal(source.fresh().linear.weight, source.fresh().linear.weight)
