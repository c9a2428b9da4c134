"""Methods under hooks: what a hook is given, what a caller gets, and that nothing is left behind."""

import pytest

from capturelint.runtime.hooks import hooked


class Graph:
    def __new__(cls, keep=False):
        made = super().__new__(cls)
        made.keep = keep
        return made

    def replay(self, times):
        if times < 0:
            raise ValueError(times)
        return times


def test_a_hook_makes_the_call_and_answers_for_it():
    seen = []

    def replay(graph, call):
        seen.append((graph, call.args[1:], call.keywords))
        return call() + 1

    graph = Graph()
    with hooked(Graph, {"replay": replay}):
        assert (graph.replay(2), graph.replay(times=3)) == (3, 4)
    assert seen == [(graph, (2,), {}), (graph, (), {"times": 3})]
    assert graph.replay(2) == 2


def test_the_makers_of_instances_may_be_hooked():
    made = []
    with hooked(Graph, {"__new__": lambda cls, call: made.append(call()) or made[-1]}):
        graph = Graph(keep=True)
    assert made == [graph]
    assert graph.keep
    assert not Graph().keep


def test_the_inner_of_two_hooks_is_called_first_and_an_error_takes_both_away():
    seen, graph = [], Graph()

    def noting(name):
        return lambda graph, call: seen.append(name) or call()

    with (
        pytest.raises(ValueError, match="-1"),
        hooked(Graph, {"replay": noting("outer")}),
        hooked(Graph, {"replay": noting("inner")}),
    ):
        graph.replay(-1)
    assert seen == ["inner", "outer"]
    assert graph.replay(1) == 1
    assert seen == ["inner", "outer"]
