"""Plans run in this process, under the emulator: what the worker would send, without the seconds of a new process."""

import os
from contextlib import contextmanager
from pathlib import Path

from capturelint.runtime.protocol import Plan, decode

CLEAN = """
import torch

def build(device):
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4).to(device)

def inputs(batch, step, device):
    g = torch.Generator().manual_seed(step)
    return {"x": torch.randn(batch, 4, generator=g).to(device)}

def step(state, x):
    return state(x)
"""


def write_target(directory: Path, source: str, name: str = "model.py") -> Path:
    path = directory / name
    path.write_text(source)
    return path


def plan(target, **changes):
    fields = {"device": "emulated", "buckets": (2,), "steps": 8, "warm_up": 3, "max_length": 32}
    return Plan(str(target), **{**fields, **changes})


def messages_of(plan):
    """Every message that a worker would send for a plan, and nothing of it left in this process."""
    from capturelint import emulator
    from capturelint.runtime.channel import Channel
    from capturelint.runtime.observations import Machine
    from capturelint.runtime.service import run_plan

    receive, send = os.pipe()
    with os.fdopen(receive, "rb") as answers, kept_modules():
        try:
            with emulator.cuda():
                run_plan(plan, Machine("emulated", "test"), Channel(send))
        finally:
            os.close(send)
        return [decode(line) for line in answers]


@contextmanager
def kept_modules():
    """A target is imported under its own name; forget it afterwards."""
    import sys

    before, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if getattr(sys.modules[name], "build", None) is not None:
                del sys.modules[name]
