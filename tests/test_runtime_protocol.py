from hypothesis import given
from hypothesis import strategies as st

from capturelint.runtime.observations import BucketResult, Floor, Machine, Observation, Spot, Times
from capturelint.runtime.protocol import Done, Fault, Plan, Progress, Stage, decode, decode_plan, encode
from capturelint.vocabulary import ObservationKind, Verdict

SEEN = Observation(
    ObservationKind.HOST_READ, "read", (Spot("a.py", 3, "step", 4, 3, 9),), 2, "item", "1", "2", "state.k"
)
RESULT = BucketResult(
    4,
    Verdict.REPLAY_DIFFERS,
    13,
    0.5,
    0.0,
    1e-4,
    "differs",
    False,
    (SEEN,),
    ("poison",),
    1,
    30,
    2,
    0.1,
    Times(1.0, 2.0),
)
MESSAGES = (
    Machine("cuda", "2.11", "NVIDIA H200"),
    Progress(Stage.EAGER, 2, 3),
    Fault(Stage.BUILD, "no", False, None, None, True),
    RESULT,
    Done(Floor(10, 2.0), ("note",)),
    Done(),
)


def test_every_message_survives_the_pipe():
    assert tuple(decode(encode(message)) for message in MESSAGES) == MESSAGES


def test_a_plan_survives_the_pipe():
    plan = Plan("model.py", "cuda", (1, 2), 16, 3, 256, driver="run", memory_limit_gib=2.5)
    assert decode_plan(encode(plan)) == plan


@given(st.data())
def test_a_line_cut_short_is_dropped(data):
    line = encode(RESULT).rstrip(b"\n")
    assert decode(line[: data.draw(st.integers(0, len(line) - 1))]) is None
