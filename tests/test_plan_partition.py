from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from capturelint.planning.partition import Frontier, cheapest_cuts

HISTOGRAMS = st.dictionaries(st.integers(1, 40), st.integers(1, 1_000), min_size=1, max_size=9)


def brute_force(frontier: Frontier, groups: int) -> int:
    """The cheapest cost over every choice of cuts."""
    last = len(frontier.counts) - 1
    return min(frontier.cost((*chosen, last)) for chosen in combinations(range(last), groups - 1))


@given(HISTOGRAMS, st.data())
def test_every_number_of_groups_is_as_cheap_as_brute_force(histogram, data):
    sizes = sorted(histogram)
    frontier = Frontier([histogram[size] for size in sizes], sizes)
    groups = data.draw(st.integers(1, len(sizes)))
    cost, cuts = frontier.best(groups)
    assert (cost, len(cuts)) == (brute_force(frontier, groups), groups)


@given(st.integers(2, 9), st.data())
def test_equally_spaced_sizes_are_spliced_from_their_neighbours(size, data):
    frontier = Frontier([1] * size, list(range(1, size + 1)))
    groups = data.draw(st.integers(1, size))
    assert frontier.best(groups)[0] == brute_force(frontier, groups)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), min_size=1, max_size=9), st.data())
def test_weights_that_stand_still_are_planned_exactly(pairs, data):
    counts = [count for count, _ in pairs]
    weights = sorted(weight for _, weight in pairs)
    frontier = Frontier(counts, weights)
    groups = data.draw(st.integers(1, len(counts)))
    assert frontier.best(groups)[0] == brute_force(frontier, groups)


@given(HISTOGRAMS)
def test_the_curve_is_convex_and_never_rises(histogram):
    sizes = sorted(histogram)
    frontier = Frontier([histogram[size] for size in sizes], sizes)
    costs = [frontier.best(groups)[0] for groups in range(1, len(sizes) + 1)]
    gains = [before - after for before, after in pairwise(costs)]
    assert gains == sorted(gains, reverse=True)
    assert all(gain > 0 for gain in gains)


def test_more_groups_than_sizes_use_every_size():
    assert Frontier([1, 1], [3, 5]).best(9)[1] == (0, 1)


def test_a_high_price_leaves_one_group():
    assert cheapest_cuts([0, 1, 2, 3], [1, 2, 3], 1_000) == (2,)


def test_100_000_sizes_take_few_passes():
    size = 100_000
    frontier = Frontier([1 + 1_000_000 // place for place in range(1, size + 1)], range(1, size + 1))
    _, cuts = frontier.best(64)
    assert len(cuts) == 64
    assert len(frontier.known) <= 8
