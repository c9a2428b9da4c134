"""What a progress line promises."""

import pytest

from capturelint.cli.waiting import Waiting, spoken


def waiting(seconds: float) -> Waiting:
    times = iter([0.0, seconds])
    return Waiting(lambda: next(times))


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "1 s"), (8.4, "8 s"), (42, "40 s"), (94, "90 s"), (130, "2 min")])
def test_times_have_the_digits_of_an_estimate(seconds, said):
    assert spoken(seconds) == said


@pytest.mark.parametrize(
    ("elapsed", "share", "said"),
    [(30, 0.5, ", about 30 s left"), (30, 0.05, ""), (1, 0.5, ""), (30, 1.0, ", about 1 s left")],
)
def test_the_rest_is_told_from_what_is_done(elapsed, share, said):
    assert waiting(elapsed).left(share) == said
