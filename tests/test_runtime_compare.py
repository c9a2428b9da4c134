import math

import pytest

torch = pytest.importorskip("torch")

from capturelint.runtime.compare import argmax_flips, argmax_margin, compare, has_nan, leaf_error, tolerance  # noqa: E402

NAN, INF = float("nan"), float("inf")


def test_equal_outputs_have_no_error():
    assert leaf_error(torch.tensor([1.0, -2.0]), torch.tensor([1.0, -2.0])) == 0.0


def test_an_error_is_relative_to_the_largest_eager_value():
    assert leaf_error(torch.tensor([1.0, -4.0]), torch.tensor([1.0, -3.0])) == pytest.approx(0.25)


def test_nan_never_passes():
    assert leaf_error(torch.tensor([1.0]), torch.tensor([NAN])) == INF
    assert leaf_error(torch.tensor([NAN]), torch.tensor([NAN])) == INF


def test_equal_infinities_pass():
    assert leaf_error(torch.tensor([-INF, 1.0]), torch.tensor([-INF, 1.0])) == 0.0
    assert leaf_error(torch.tensor([-INF, 2.0]), torch.tensor([-INF, 1.0])) == pytest.approx(0.5)


def test_other_infinities_do_not_pass():
    assert leaf_error(torch.tensor([-INF, 1.0]), torch.tensor([INF, 1.0])) == INF
    assert leaf_error(torch.tensor([0.0, 1.0]), torch.tensor([-INF, 1.0])) == INF


def test_another_shape_or_dtype_does_not_pass():
    assert leaf_error(torch.zeros(2), torch.zeros(3)) == INF
    assert leaf_error(torch.tensor([1, 1, 1]), torch.tensor([1])) == INF
    assert leaf_error(torch.tensor([1]), torch.tensor([1, 1, 1])) == INF
    assert leaf_error(torch.zeros(2), torch.zeros(2, dtype=torch.float64)) == INF


def test_integers_must_be_equal():
    for other in (3, 5):
        assert leaf_error(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, other])) == 0.25
    assert tolerance([torch.tensor([1])], noise=0.0) == tolerance([3], noise=0.0) == 0.0


def test_an_all_zero_output_has_no_scale_to_hide_behind():
    assert leaf_error(torch.zeros(2), torch.full((2,), 1e-3)) > 1.0


def test_an_empty_output_is_equal():
    assert leaf_error(torch.zeros(0), torch.zeros(0)) == 0.0
    assert leaf_error(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)) == 0.0


def test_a_step_with_another_number_of_outputs_does_not_pass():
    assert compare([[torch.zeros(1)]], [[]]).worst == INF
    assert compare([[]], [[torch.zeros(1)]]).worst == INF


def test_steps_that_only_one_run_made_are_not_compared():
    made = [[torch.tensor([[0.0, 1.0]])]]
    assert compare(made * 2, made).errors == (0.0,)
    assert argmax_flips(made * 2, made) == 0


def test_the_first_wrong_step_is_named():
    expected = [[torch.tensor([1.0])]] * 3
    got = [[torch.tensor([1.0])], [torch.tensor([1.5])], [torch.tensor([1.0])]]
    assert compare(expected, got).first_above(1e-4) == 1
    assert compare(expected, got).first_above(0.5) is None


def test_tolerance_follows_the_dtype_and_the_noise():
    assert tolerance([torch.zeros(1, dtype=torch.bfloat16)], 0.0) > tolerance([torch.zeros(1)], 0.0)
    assert tolerance([torch.zeros(1)], noise=0.1) == pytest.approx(0.4)


def test_nan_is_found_in_any_output():
    assert has_nan([torch.tensor([1]), torch.tensor([0.0, NAN])])
    assert not has_nan([torch.tensor([1]), torch.tensor([INF])])
    assert not has_nan([1.5])
    assert has_nan([math.nan])


def test_flips_count_rows_that_choose_another_token():
    eager = [[torch.tensor([[0.0, 1.0], [1.0, 0.0]])]]
    replayed = [[torch.tensor([[0.0, 1.0], [0.0, 1.0]])]]
    assert argmax_flips(eager, replayed) == 1


ROWS = torch.tensor([[1.0, 3.0, 2.0], [0.0, 1.0, 2.0]])


@pytest.mark.parametrize(
    ("eager", "replayed"),
    [
        (torch.tensor([1]), torch.tensor([1])),
        (ROWS.long(), ROWS.long()),
        (ROWS[0], ROWS[0]),
        (ROWS, ROWS[:1]),
        (ROWS[:1], ROWS),
        (ROWS, 1),
        (1, ROWS),
    ],
)
def test_what_is_no_pair_of_logits_has_no_flips(eager, replayed):
    assert argmax_flips([[eager]], [[replayed]]) is None


def test_the_first_output_holds_the_logits_and_tokens_are_its_last_dimension():
    eager, replayed = ROWS.expand(2, 2, 3), ROWS.flip(-1).expand(2, 2, 3)
    assert argmax_flips([[eager, ROWS]], [[replayed, 1]]) == argmax_flips([[replayed, 1]], [[eager, ROWS]]) == 2
    assert argmax_margin([[ROWS.expand(4, 2, 3), torch.tensor([1])]]) == pytest.approx(1 / 3)
    assert argmax_margin([[ROWS.expand(4, 2, 3)[:, :1]]]) == pytest.approx(1 / 3)


def test_the_margin_is_the_smallest_distance_of_the_two_best_logits():
    logits = torch.tensor([[4.0, 3.0, 0.0], [1.0, 3.5, 3.0]])
    assert argmax_margin([[logits], [logits * 2]]) == 0.125


def test_tokens_have_no_margin():
    assert argmax_margin([[torch.tensor([1, 2])]]) is None
    assert argmax_margin([[1.0]]) is None
    assert argmax_margin([[ROWS[0]]]) is None
    assert argmax_margin([[ROWS[:, :1]]]) is None
    assert argmax_margin([[ROWS[:0]]]) is None


@pytest.mark.parametrize(
    ("expected", "got", "error"),
    [(3, 3, 0.0), (3.5, float("3.5"), 0.0), (3, 4, INF), (4, 3, INF), (3, torch.tensor(3), INF)],
)
def test_values_of_the_host_must_be_equal(expected, got, error):
    assert leaf_error(expected, got) == error


def test_a_flip_is_another_best_token_of_a_row():
    expected = torch.tensor([[1.0, 5.0, 2.0], [7.0, 0.0, 6.0]])
    got = torch.tensor([[1.0, 5.0, 2.0], [6.0, 0.0, 7.0]])
    assert argmax_flips([[expected]], [[got]]) == 1
    assert argmax_flips([[expected]], [[expected]]) == 0


def test_a_margin_is_between_the_two_best_of_two_tokens():
    assert argmax_margin([[torch.tensor([[4.0, 1.0]])]]) == 0.75


def test_where_nothing_was_compared_nothing_is_wrong():
    assert compare([], []).worst == 0.0
    assert compare([[]], [[]]).errors == (0.0,)
