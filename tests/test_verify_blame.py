"""What goes wrong without a frame of its own is blamed on its line: in the step, and in the code that captures it."""

import pytest

pytest.importorskip("torch")

from runtime_here import messages_of, plan, write_target

from capturelint.runtime.blame import Suspects, blame
from capturelint.runtime.observations import BucketResult

STEP = """
import torch

def build(device):
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4).to(device)

def inputs(batch, step, device):
    g = torch.Generator().manual_seed(step)
    return {"x": torch.randn(batch, 4, generator=g).to(device)}

def step(state, x):
"""

UNJOINED = """
    side = torch.cuda.Stream()
    y = state(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # here
        z = y * 2
    return y
"""

SWALLOWED = """
    try:
        scale = x[0, 0].item()  # here
    except RuntimeError:
        scale = 1.0
    return state(x) * scale
"""

ASKED = """
    event = torch.cuda.Event()
    event.record()
    done = event.query()  # here
    return state(x)
"""

WRONG = """
    state.n = getattr(state, "n", 0) + 1
    return state(x) * state.n  # here
"""


DIE = """
    return state(x) * np.random.normal()  # here
"""

OWN_DIE = """
    return state(x) * DIE.normal()  # here
"""

COIN = """
    if torch.rand(1) < 0.5:  # here
        x = x + 1
    return state(x)
"""

SHUFFLED = """
    random.shuffle(ORDER)  # here
    return state(x) * ORDER[0]
"""

CLASS = """
    Turns.turn = 1 - Turns.turn
    if Turns.turn:  # here
        x = x + 1
    return state(x)
"""

OF_THE_HOST = STEP.replace(
    "import torch\n",
    "import random\nimport numpy as np\nimport torch\nDIE = np.random.default_rng(0)\nORDER = list(range(9))\n"
    "class Turns:\n    turn = 0\n",
)


def answer(target, **changes):
    """The verdict, and rule and line of every finding."""
    *_, result = [each for each in messages_of(plan(target, **changes)) if isinstance(each, BucketResult)]
    found = blame(result.observations, 2, Suspects())
    return result.verdict.value, [(each.rule, each.place.line if each.place else 0) for each in found]


def marked(source):
    """The line with the mark."""
    return next(number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# here"))


@pytest.mark.parametrize(
    ("body", "verdict", "rule"),
    [
        (UNJOINED, "capture-error", "stream-misuse"),
        (SWALLOWED, "capture-error", "host-sync"),
        (ASKED, "capture-error", "host-sync"),
        (WRONG, "replay-differs", "baked-scalar"),
    ],
    ids=["unjoined stream", "reported by the end of the capture", "asked for progress", "wrong without an error"],
)
def test_what_has_no_frame_is_blamed_on_its_line(tmp_path, body, verdict, rule):
    source = STEP + body.lstrip("\n")
    got, found = answer(write_target(tmp_path, source), traced=True)
    assert got == verdict
    assert (rule, marked(source)) in found


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (DIE, "host-random"),
        (OWN_DIE, "host-random"),
        (COIN, "host-random"),
        (SHUFFLED, "host-random"),
        (CLASS, "baked-scalar"),
    ],
    ids=["numpy", "a generator of numpy", "a branch on a host tensor", "a shuffled list", "a class's attribute"],
)
def test_what_the_host_draws_and_counts_is_told_apart(tmp_path, body, rule):
    source = OF_THE_HOST + body.lstrip("\n")
    got, found = answer(write_target(tmp_path, source))
    assert (got, found[0]) == ("replay-differs", (rule, marked(source)))


DRIVER = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.scale = 1
        self.bank = [torch.full((4,), 1.0 + i, device="cuda") for i in range(2)]
        self.bias = self.bank[0]
        self.cache = torch.zeros(6, 4, device="cuda")
        self.lazy = None
        self.register_buffer("n", torch.zeros(1))

    def forward(self, x):
        self.n.add_(1)
        return self.layer(x) * self.scale + self.bias + self.n

    def write(self, x, slot):
        self.cache[slot] = x  # negative
        return self.cache[:2] + 0

    def keep(self, x):
        if self.lazy is None:
            self.lazy = torch.zeros(2, 4, device="cuda")  # lazy
        self.lazy.add_(x)
        return self.lazy + 0

def build():
    torch.manual_seed(0)
    return Model().cuda()

def inputs(step):
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(step)).cuda()

def step(model, x):
    return model(x)

def capture(run):
    # A GPU makes the handles of its libraries at their first use, which no capture may be.
    torch.nn.functional.linear(*(torch.ones(4, 4, device="cuda") for _ in range(2)), torch.ones(4, device="cuda"))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()
    return graph, output
"""

STALE = """
@torch.no_grad()
def drive(device):
    model, eager, x = build(), build(), inputs(0)
    graph, output = capture(lambda: step(model, x))
    expected, got = [], []
    for i in range(3):
        expected.append(step(eager, inputs(i)).clone())
        x.copy_(inputs(i))
        graph.replay()
        got.append(output)  # here
    return {"expected": torch.stack(expected), "got": torch.stack(got)}
"""

REBOUND = """
class Session:
    def __init__(self):
        self.model, self.x = build(), inputs(0)
        self.graph, self.output = capture(lambda: step(self.model, self.x))

    def advance(self):
        self.graph.replay()
        self.x = self.output.sin()  # here
        return self.output.clone()

@torch.no_grad()
def drive(device):
    session, eager, x = Session(), build(), inputs(0)
    expected, got = [], []
    for i in range(3):
        y = step(eager, x)
        x = y.sin()
        expected.append(y)
        got.append(session.advance())
    return {"expected": torch.stack(expected), "got": torch.stack(got)}
"""

KEPT = """
class Session:
    def __init__(self, model, x):
        self.graph, self.out = capture(lambda: step(model, x))
        self.previous, self.trace = torch.zeros_like(self.out), {}

    def advance(self, at):
        self.graph.replay()
        STORE
        return RESULT

@torch.no_grad()
def drive(device):
    model, x = build(), inputs(0)
    session, before = Session(model, x), torch.zeros_like(inputs(0))
    expected, got = [], []
    for i in range(4):
        now = step(model, inputs(i)).clone()
        x.copy_(inputs(i))
        got.append(session.advance(i))
        expected.append(EXPECTED)
        before = now
    return {"expected": torch.stack(expected), "got": torch.stack([each + 0 for each in got])}
"""

PREVIOUS = (
    KEPT.replace("STORE", "moved = self.out - self.previous; self.previous = self.out  # here")
    .replace("RESULT", "moved")
    .replace("EXPECTED", "now - (before if i else 0)")
)

SWAPPED_IN = (
    KEPT.replace("STORE", "before, self.previous = self.previous, self.out  # here")
    .replace("RESULT", "self.out - before")
    .replace("EXPECTED", "now - (before if i else 0)")
)

APPENDED = (
    KEPT.replace("STORE", "self.trace.setdefault(0, []).append(self.out)  # here")
    .replace("RESULT", "self.trace[0][at] if at else self.out + 0")
    .replace("EXPECTED", "now")
)

AROUND = """
@torch.no_grad()
def drive(device):
    model, eager, x = build(), build(), inputs(0)
    graph, output = capture(lambda: step(model, x))
    expected, got = [], []
    for i in range(3):
        BETWEEN
        x.copy_(inputs(i))
        expected.append(step(eager, inputs(i)).clone())
        graph.replay()
        got.append(output.clone())
    return {"expected": torch.stack(expected), "got": torch.stack(got)}
"""

SWAPPED = AROUND.replace("BETWEEN", "eager.bias = eager.bank[i % 2]\n        model.bias = model.bank[i % 2]  # here")
FROZEN = AROUND.replace("BETWEEN", "eager.scale = model.scale = i + 1")

WARMED = AROUND.replace("BETWEEN", "pass").replace(
    "    graph, output", "    for _ in range(2):\n        step(model, x)  # here\n    graph, output", 1
)

HELPED = AROUND.replace("BETWEEN", "pass").replace(
    "    graph, output",
    "    def warm(call):\n        call()\n    warm(lambda: step(model, x))  # here\n    graph, output",
    1,
)
RESTORED = (
    AROUND.replace("BETWEEN", "pass")
    .replace(
        "    graph, output",
        "    step(model, x)  # here\n    saved = model.n.clone()\n    graph, output",
        1,
    )
    .replace("    expected, got", "    model.n.copy_(saved)\n    expected, got", 1)
)

GIVEN = """
class Lazy:
    def __init__(self, model):
        self.model, self.x, self.graph = model, inputs(0), None

    def __call__(self, scale):
        if self.graph is None:
            self.graph, self.out = capture(lambda: scaled(self.model.layer(self.x), scale))
        self.graph.replay()
        return self.out.clone()

def scaled(values, scale):
    return values * scale  # here

@torch.no_grad()
def drive(device):
    model, x = build(), inputs(0)
    run = Lazy(model)
    return {"expected": torch.stack([model.layer(x) * i for i in (1, 2)]), "got": torch.stack([run(i) for i in (1, 2)])}
"""

TWICE = """
@torch.no_grad()
def drive(device):
    model, x = build(), inputs(0)
    graph, output = capture(lambda: model.layer(x))
    def run(i):
        x.copy_(inputs(i))
        graph.replay()
        return output
    got = run(0) - run(1)  # here
    return {"expected": (model.layer(inputs(0)) - model.layer(inputs(1)))[None], "got": got[None]}
"""

CAST = AROUND.replace("BETWEEN", "pass").replace(
    "    expected, got", "    model.double()  # here\n    model.bias.mul_(2), eager.bias.mul_(2)\n    expected, got", 1
)

CONVERTED = """
@torch.no_grad()
def drive(device):
    model, mask = build(), torch.zeros(2, 1, dtype=torch.bool, device=device)
    scale = mask.float() * 2 + 1
    graph, output = capture(lambda: model.layer(scale * torch.ones(2, 4, device=device)))
    mask.fill_(True)  # here
    graph.replay()
    return {"expected": model.layer(3 * torch.ones(2, 4, device=device))[None], "got": output[None]}
"""

SHARED = """
@torch.no_grad()
def drive(device):
    first, second, x, out = build().layer, build().bank, inputs(0), torch.zeros(2, 4, device=device)
    one, _ = capture(lambda: out.copy_(first(x)))
    two, _ = capture(lambda: out.copy_(second[0]))
    def run(graph):
        graph.replay()
        return out
    a = run(one)  # here
    b = run(two)
    return {"expected": (first(x) + second[0])[None], "got": (a + b)[None]}
"""

PADDED = """
@torch.no_grad()
def drive(device):
    model, token = build(), torch.zeros(4, dtype=torch.long, device=device)
    def centred(token):
        x = torch.stack(model.bank)[token]
        return model.layer(x - x.mean(0))  # here
    graph, output = capture(lambda: centred(token))
    expected, got = [], []
    for live in (4, 2, 3):
        fresh = torch.arange(live, device=device) % 2
        token.zero_()
        token[:live].copy_(fresh)
        graph.replay()
        expected.append(centred(fresh))
        got.append(output[:live].clone())
    return {"expected": torch.cat(expected), "got": torch.cat(got)}
"""

RECORDED = """
class Kept:
    def __init__(self, logits, hidden):
        self.logits, self.hidden = logits, hidden

@torch.no_grad()
def drive(device):
    model, x = build(), inputs(0)
    graph, output = capture(lambda: step(model, x))
    def run():
        graph.replay()
        return Kept(output + 0, output[:, :2])  # here
    expected, got = [], []
    for i in range(3):
        x.copy_(inputs(i))
        got.append(run())
        hidden = model.layer(x) * 2
        expected.append(output[:, :2] + 0)
    return {"expected": torch.stack(expected), "got": torch.stack([each.hidden for each in got])}
"""

THREADED = """
import queue, threading

class Worker(threading.Thread):
    def __init__(self, model):
        super().__init__(daemon=True)
        self.model, self.x, self.given, self.made = model, inputs(0), queue.Queue(), queue.Queue()
        self.graph, self.output = capture(lambda: step(model, self.x))

    def run(self):
        for _ in range(3):
            self.x.copy_(self.given.get())
            self.graph.replay()
            self.made.put(self.output)  # here

@torch.no_grad()
def drive(device):
    eager, worker, expected, got = build(), Worker(build()), [], []
    worker.start()
    for i in range(3):
        worker.given.put(inputs(i))
        got.append(worker.made.get())
        expected.append(step(eager, inputs(i)))
    return {"expected": torch.stack(expected), "got": torch.stack(got)}
"""

GRAPHED = """
def drive(device):
    model, eager = (build().layer.requires_grad_(False) for _ in range(2))
    fast = torch.cuda.make_graphed_callables(model, (inputs(0),))
    expected, got = [], []
    for i in range(3):
        got.append(fast(inputs(i)))  # here
        expected.append(eager(inputs(i)))
    return {"expected": torch.stack(expected), "got": torch.stack(got)}
"""

FREED = """
@torch.no_grad()
def drive(device):
    eager, x = build(), inputs(0)
    def prepared(model):
        return capture(lambda: step(model, x))
    graph, output = prepared(build())  # here
    expected, got, scratch = [], [], []
    for i in range(3):
        scratch.append(torch.full((4, 4), 9.0, device="cuda"))
        expected.append(step(eager, inputs(i)).clone())
        x.copy_(inputs(i))
        graph.replay()
        got.append(output.clone())
    return {"expected": torch.stack(expected), "got": torch.stack(got)}
"""

NEGATIVE = """
@torch.no_grad()
def drive(device):
    model, x = build(), inputs(0)
    slot = torch.tensor([0, -1], device="cuda")
    graph, output = capture(lambda: model.write(x, slot))
    graph.replay()
    return {"expected": torch.zeros(4, device="cuda"), "got": model.cache[5].clone()}
"""

COLLIDED = """
@torch.no_grad()
def drive(device):
    model, x = build(), inputs(0)
    slot = torch.tensor([0, 0], device=device)
    graph, output = capture(lambda: model.write(x, slot))
    model.cache.zero_()
    graph.replay()
    return {"expected": x[None, 0] + x[None, 1], "got": model.cache[None, 0]}
"""

MOVED_AWAY = """
@torch.no_grad()
def drive(device):
    model, x, y = build().layer, inputs(0), inputs(0)
    graph, output = capture(lambda: y.copy_(model(x)))
    model.cpu()
    model.to(device)  # here
    graph.replay()
    return {"expected": model(x)[None], "got": y[None]}
"""


def test_memory_that_was_freed_is_blamed_though_the_same_values_are_there_again(tmp_path):
    source = DRIVER + MOVED_AWAY
    assert driven(tmp_path, source) == ("replay-differs", [("input-rebind", marked(source))])


LAZY = """
@torch.no_grad()
def drive(device):
    model, eager, x = build(), build(), inputs(0)
    graph, output = capture(lambda: model.keep(x))
    expected, got = [], []
    for i in range(3):
        expected.append(eager.keep(inputs(i)).clone())
        x.copy_(inputs(i))
        graph.replay()
        got.append(output.clone())
    return {"expected": torch.stack(expected), "got": torch.stack(got)}
"""

GAP = """
import bisect

@torch.no_grad()
def drive(device):
    graphs = {2: capture(lambda: torch.zeros(2, device=device) + 1)}
    sizes = sorted(graphs)
    return LOOK_UP  # here
"""


def driven(tmp_path, source):
    return answer(write_target(tmp_path, source), driver="drive", buckets=(0,))


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (STALE, "stale-output"),
        (PREVIOUS, "stale-output"),
        (REBOUND, "input-rebind"),
        (SWAPPED, "input-rebind"),
        (SWAPPED_IN, "stale-output"),
        (APPENDED, "stale-output"),
        (SHARED, "stale-output"),
        (CAST, "input-rebind"),
        (CONVERTED, "input-rebind"),
        (WARMED, "warm-up-state"),
        (HELPED, "warm-up-state"),
        (RESTORED, "warm-up-state"),
        (GIVEN, "baked-scalar"),
        (TWICE, "stale-output"),
        (PADDED, "pad-write"),
        (THREADED, "stale-output"),
        (RECORDED, "stale-output"),
        (GRAPHED, "stale-output"),
    ],
    ids=[
        "kept output",
        "output kept as an attribute",
        "rebound input",
        "swapped tensor",
        "output kept by an assignment of two",
        "output kept in a list of an object",
        "output that another graph writes over",
        "weights of another dtype",
        "original of a converted mask",
        "warmed-up state",
        "state warmed up by a helper",
        "state saved after warm-up",
        "number that a wrapper was called with",
        "two replays in one expression",
        "rows mixed by a mean",
        "output kept by a thread",
        "output kept in a record that is made of it",
        "output of a graphed callable",
    ],
)
def test_a_driver_that_is_silently_wrong_is_blamed_on_its_line(tmp_path, body, rule):
    source = DRIVER + body
    assert driven(tmp_path, source) == ("replay-differs", [(rule, marked(source))])


def test_memory_that_a_driver_frees_is_blamed_where_it_is_freed(tmp_path):
    source = DRIVER + FREED
    verdict, found = driven(tmp_path, source)
    assert verdict == "replay-differs"
    assert ("freed-memory", marked(source)) in found


@pytest.mark.parametrize(
    ("body", "rule", "mark"),
    [
        (FROZEN, "baked-scalar", "self.scale + self.bias"),
        (NEGATIVE, "pad-write", "# negative"),
        (COLLIDED, "pad-write", "# negative"),
        (LAZY, "lazy-init", "# lazy"),
    ],
    ids=["frozen number", "negative index", "rows that write one slot", "made in the capture"],
)
def test_a_line_of_the_step_is_blamed_for_what_a_driver_shows(tmp_path, body, rule, mark):
    line = next(number for number, text in enumerate(DRIVER.splitlines(), 1) if mark in text)
    assert driven(tmp_path, DRIVER + body) == ("replay-differs", [(rule, line)])


@pytest.mark.parametrize(
    "look_up", ["graphs[sizes[bisect.bisect_left(sizes, 3)]]", "graphs[[each for each in sizes if each >= 3][0]]"]
)
def test_a_look_up_that_runs_off_the_buckets_is_a_gap(tmp_path, look_up):
    source = DRIVER + GAP.replace("LOOK_UP", look_up)
    assert driven(tmp_path, source) == ("crash", [("bucket-gap", marked(source))])


UNKNOWN = """
@torch.no_grad()
def drive(device):
    CAPTURE
    return {"expected": torch.zeros(1), "got": build().no_such_method()}  # here
"""


def test_a_driver_that_raises_by_itself_is_not_said_to_be_refused(tmp_path):
    source = DRIVER + UNKNOWN.replace("CAPTURE", "capture(lambda: torch.zeros(1, device=device) + 1)")
    *_, result = messages_of(plan(write_target(tmp_path, source), driver="drive", buckets=(0,)))
    (finding,) = blame(result.observations, 0, Suspects())
    assert (finding.place.line, "outside any capture" in finding.message) == (marked(source), True)


def test_a_driver_that_raises_before_any_capture_is_the_targets_fault(tmp_path):
    source = DRIVER + UNKNOWN.replace("CAPTURE", "pass")
    *_, fault = messages_of(plan(write_target(tmp_path, source), driver="drive", buckets=(0,)))
    assert f"model.py:{marked(source)}: `drive` raises: AttributeError" in fault.message


BEYOND = """
@torch.no_grad()
def drive(device):
    model, at = build(), torch.zeros(1, dtype=torch.long, device=device)
    graph, output = capture(lambda: model.cache.index_copy_(0, at, at[None] + torch.zeros(1, 4, device=device)))
    for i in range(9):
        at.fill_(i)
        graph.replay()  # here
    return {"expected": output, "got": output}
"""


def test_a_replay_that_fails_is_told_at_its_line(tmp_path):
    source = DRIVER + BEYOND
    assert driven(tmp_path, source) == ("replay-differs", [("unexplained", marked(source))])


def test_a_right_driver_has_no_finding(tmp_path):
    assert driven(tmp_path, DRIVER + AROUND.replace("BETWEEN", "pass")) == ("ok", [])


CHOSEN = """
    state.bank = getattr(state, "bank", [torch.ones(4, device=x.device), torch.zeros(4, device=x.device)])
    state.n = getattr(state, "n", 0) + 1
    return state(x) + state.bank[state.n % 2]  # here
"""

WINDOW = """
    from collections import deque
    state.last = getattr(state, "last", deque([x, x], maxlen=2))
    state.last.append(x + 0)  # here
    return state(state.last[0])
"""

REPOINTED = """
    state.bias.data = state.bias * 2 + 1  # here
    return state(x)
"""

TURNED = """
    state.n = getattr(state, "n", 0) + 1
    if state.n % 2:  # here
        x = x * 2
    return state(x)
"""

FLIPPED = """
    state.odd = not getattr(state, "odd", False)
    if state.odd:  # here
        x = x * 2
    return state(x)
"""

LOTTERY = """
    import random
    state.bank = getattr(state, "bank", [torch.full((4,), float(i), device=x.device) for i in range(9)])
    return state(x) + random.choice(state.bank)  # here
"""

UNSEEDED = """
    import random
    state.draw = getattr(state, "draw", random.SystemRandom().random)
    return state(x) * state.draw()  # here
"""


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (CHOSEN, "baked-scalar"),
        (LOTTERY, "host-random"),
        (TURNED, "baked-scalar"),
        (FLIPPED, "host-side-effect"),
        (WINDOW, "state-rebind"),
        (REPOINTED, "state-rebind"),
        (UNSEEDED, "host-random"),
    ],
    ids=[
        "a tensor chosen by a counter",
        "a tensor chosen by lot",
        "a branch on a counter",
        "a branch on a flag",
        "a window that moves on",
        "a parameter given other memory",
        "a draw that no seed repeats",
    ],
)
def test_what_a_graph_freezes_beside_numbers_is_blamed_on_its_line(tmp_path, body, rule):
    source = STEP + body.lstrip("\n")
    got, found = answer(write_target(tmp_path, source))
    assert got == "replay-differs"
    assert (rule, marked(source)) in found


CARRIED = """
import torch

CARRY = [None]

def build(device):
    torch.manual_seed(0)
    CARRY[0] = torch.zeros(2, 4, device=device)
    return torch.nn.Linear(4, 4).to(device)

def inputs(batch, step, device):
    return {"x": torch.randn(batch, 4, device=device)}

def step(state, x):
    y = state(x) + CARRY[0] * 0.5
    CARRY[0] = y  # here
    return y
"""


def test_a_tensor_that_a_module_keeps_is_blamed_where_it_is_rebound(tmp_path):
    got, found = answer(write_target(tmp_path, CARRIED))
    assert (got, found) == ("replay-differs", [("state-rebind", marked(CARRIED))])


OUTSIDE = """
import torch

CLOCK = {}

def build(device):
    torch.manual_seed(0)
    CLOCK["now"] = torch.zeros(1, device=device)
    return torch.nn.Linear(4, 4).to(device)

def inputs(batch, step, device):
    g = torch.Generator().manual_seed(step)
    return {"x": torch.randn(batch, 4, generator=g).to(device)}

@torch.no_grad()
def step(state, x):
    CLOCK["now"] += 1
    state.bias.data[:2].add_(CLOCK["now"])
    return state(x)
"""


def test_memory_that_no_copy_of_the_state_has_for_itself_is_rewound_with_it(tmp_path):
    """Globals that ``build`` makes anew, and parameters, which copies share."""
    assert answer(write_target(tmp_path, OUTSIDE), buckets=(2, 1)) == ("ok", [])
