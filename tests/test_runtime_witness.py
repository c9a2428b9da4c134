"""What a refused capture was refused for."""

import pytest

pytest.importorskip("torch")

from capturelint.runtime import witness
from capturelint.runtime.trace import Call
from capturelint.vocabulary import ObservationKind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten.linalg_vector_norm.default", None),
        ("aten._linalg_check_errors.default", ObservationKind.CHECKED_ERROR),
        ("aten.linalg_inv.default", ObservationKind.CHECKED_ERROR),
        ("aten.linalg_inv_ex.default", None),
        ("aten._linalg_eigh.default", ObservationKind.CHECKED_ERROR),
        ("aten.cholesky.default", ObservationKind.CHECKED_ERROR),
    ],
)
def test_only_solvers_read_back_an_error_code(name, kind):
    assert witness.kind_of_call(Call(name, (), (), ())) == kind


def test_an_error_that_cannot_say_anything_is_read_all_the_same():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    assert witness.first_line(Mute()) == ""


def test_a_generator_that_no_graph_knows_is_told_by_the_gpus_words():
    error = RuntimeError("Attempt to increase offset for a CUDA generator not in capture mode.")
    assert witness.kind_of(error, (), ()) is ObservationKind.FOREIGN_GENERATOR
