import pytest

pytest.importorskip("torch")

from dataclasses import replace

from capturelint.runtime.differences import StepTrace, captured_otherwise, frozen
from capturelint.runtime.lines import Line, parting
from capturelint.runtime.observations import Spot
from capturelint.runtime.trace import Argument, Call
from capturelint.vocabulary import ObservationKind


def call(name, line, shape=(2,), scalar=None, address=1, content=""):
    scalars = () if scalar is None else (("1", repr(scalar)),)
    tensor = Argument(shape, "float32", "cuda:0", address, content)
    return Call(f"aten.{name}.default", (tensor,), scalars, (Spot("model.py", line, "step"),))


def trace(step, *calls, homes=None, lines=()):
    return StepTrace(step, calls, tuple(lines), homes or {})


def blamed(found):
    return [(each.kind, each.spots[-1].line) for each in found]


def test_equal_steps_freeze_nothing():
    assert frozen(trace(3, call("add", 5, scalar=1)), trace(4, call("add", 5, scalar=1))) == []


def test_addresses_of_intermediates_mean_nothing():
    assert frozen(trace(3, call("add", 5, address=1)), trace(4, call("add", 5, address=9))) == []


def test_another_number_is_frozen():
    found = frozen(trace(3, call("add", 5, scalar=1)), trace(4, call("add", 5, scalar=2)))
    assert blamed(found) == [(ObservationKind.SCALAR_CHANGED, 5)]
    assert (found[0].before, found[0].after) == ("1", "2")


def test_every_line_with_another_number_is_named_once():
    first = [call("slice", 5, scalar=1), call("slice", 5, scalar=1), call("slice", 6, scalar=1)]
    later = [call("slice", 5, scalar=2), call("slice", 5, scalar=2), call("slice", 6, scalar=2)]
    assert [line for _, line in blamed(frozen(trace(3, *first), trace(4, *later)))] == [5, 6]


def test_growth_is_blamed_on_what_reads_the_state_and_not_on_what_follows():
    first = [call("cat", 5, (2, 3), address=7), call("mul", 6, (2, 4), address=2)]
    later = [call("cat", 5, (2, 4), address=8), call("mul", 6, (2, 5), address=3)]
    found = frozen(trace(3, *first, homes={7: "state.k"}), trace(4, *later, homes={8: "state.k"}))
    assert blamed(found) == [(ObservationKind.SHAPE_CHANGED, 5)]
    assert found[0].home == "state.k"


def test_other_host_memory_is_frozen():
    host = [Argument((2,), "float32", "cpu", 1, content) for content in "ab"]
    first, later = (replace(call("copy_", 5), tensors=(*call("copy_", 5).tensors, each)) for each in host)
    assert blamed(frozen(trace(3, first), trace(4, later))) == [(ObservationKind.HOST_BYTES_CHANGED, 5)]
    made = [replace(call("clone", 4), tensors=(each,)) for each in host]
    assert frozen(trace(3, made[0]), trace(4, made[1])) == []
    uploaded = frozen(trace(3, made[0], first), trace(4, made[1], later))
    assert blamed(uploaded) == [(ObservationKind.HOST_BYTES_CHANGED, 4)]


def test_a_branch_that_goes_the_other_way_is_blamed_on_its_line():
    first = trace(3, call("add", 6), lines=[Line("model.py", 5, 1), Line("model.py", 6, 1)])
    later = trace(4, call("mul", 8), lines=[Line("model.py", 5, 1), Line("model.py", 8, 1)])
    assert blamed(frozen(first, later)) == [(ObservationKind.CALL_CHANGED, 5)]


def test_work_left_out_while_captured_is_told_from_work_that_changes():
    captured = trace(3, lines=[Line("model.py", 5, 1)])
    eager = trace(3, call("mul", 8), lines=[Line("model.py", 5, 1), Line("model.py", 8, 1)])
    seen = captured_otherwise(captured, eager)
    assert seen is not None
    assert seen.kind is ObservationKind.CAPTURE_DEPENDENT
    assert captured_otherwise(eager, eager) is None


def test_paths_part_in_the_function_that_branches():
    common = [Line("model.py", 18, 1), Line("model.py", 8, 2)]
    assert parting([*common, Line("model.py", 19, 1)], [*common, Line("model.py", 20, 1)]) == common[0]


def test_equal_paths_do_not_part():
    assert parting([Line("model.py", 1, 1)], [Line("model.py", 1, 1)]) is None
