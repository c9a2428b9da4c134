"""What one file does to another: registries filled by decorators elsewhere, counters in a module of settings."""

from pathlib import Path

from capturelint.static.check import Options, check

REGISTRY = """
LAYERS = {}


def register(name):
    def decorate(cls):
        LAYERS[name] = cls
        return cls

    return decorate
"""
LAYER = """
from registry import register


@register("loud")
class Loud:
    def __call__(self, x):
        return x * x.sum().item()


@register("quiet")
class Quiet:
    def __call__(self, x):
        return x * x.sum()
"""
MODEL = """
import torch

import layers
from registry import LAYERS


class Decoder:
    def __init__(self):
        self.layer = LAYERS["NAME"]()

    def decode_step(self, x: torch.Tensor):
        return self.layer(x)
"""
COUNTING = """
import torch

import settings


def decode_step(model, x: torch.Tensor):
    settings.STEP += 1
    return x * settings.STEP + settings.SCALE
"""

GRAPHED = """
from torch import cuda


class GraphedCall:
    def __init__(self, function, warm_ups=1):
        self.function, self.warm_ups, self.graph = function, warm_ups, None

    def __call__(self, *args):
        if self.warm_ups:
            self.warm_ups -= 1
            return self.function(*args)
        if self.graph is None:
            self.args = [arg.clone() for arg in args]
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.function(*self.args)
        for static, arg in zip(self.args, args):
            static.copy_(arg)
        self.graph.replay()
        return self.out


def graphed(function):
    return GraphedCall(function)
"""
GENERATOR = """
import torch
from torch import nn

from calls import graphed


class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * x.sum()

    def score(self, x: torch.Tensor):
        return x.sum().item()


class Generator:
    def __init__(self, model: Model):
        self.run = graphed(model)
        self.score = model.score


class Scorer:
    def __init__(self, model: Model):
        self.run = graphed(model.score)


@graphed
def scaled(x: torch.Tensor):
    return x * x.amax().item()
"""

SCRIPT = """
import torch
from tensordict.nn import CudaGraphModule


def act(observation: torch.Tensor):
    return observation * observation.sum().item()


if __name__ == "__main__":
    act = CudaGraphModule(act)
"""


def found(root: Path, **files: str) -> list[tuple[str, int, str]]:
    """File, line and rule of each finding."""
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    checked = check([root], Options(root=root))
    return [(f.place.path.name, f.place.line, f.rule) for f in checked.findings if f.place is not None]


def test_a_class_is_found_under_the_name_that_its_decorator_gave_it(tmp_path):
    model = MODEL.replace("NAME", "loud")
    assert found(tmp_path, registry=REGISTRY, layers=LAYER, model=model) == [("layers.py", 8, "host-sync")]


def test_a_registered_class_that_is_not_chosen_is_silent(tmp_path):
    assert found(tmp_path, registry=REGISTRY, layers=LAYER, model=MODEL.replace("NAME", "quiet")) == []


def test_a_counter_in_another_module_changes_at_every_step(tmp_path):
    settings = "STEP = 0\nSCALE = 2\n"
    assert found(tmp_path, settings=settings, step=COUNTING) == [("step.py", 9, "baked-scalar")]


def test_a_module_of_a_package_does_not_hide_torch(tmp_path):
    package = tmp_path / "engine"
    (package / "utils").mkdir(parents=True)
    for directory in (package, package / "utils"):
        (directory / "__init__.py").touch()
    (package / "utils" / "torch.py").write_text("def tensor(value, device):\n    return value\n")
    body = "    return x * torch.tensor(1.0, device=x.device)\n"
    step = f"import torch\n\n\ndef decode_step(model, x: torch.Tensor):\n{body}"
    assert found(tmp_path, step=step) == [("step.py", 5, "upload")]


def test_what_is_handed_to_a_wrapper_of_another_file_is_recorded(tmp_path):
    reads = [("generator.py", 13, "host-sync"), ("generator.py", 29, "host-sync")]
    assert found(tmp_path, calls=GRAPHED, generator=GENERATOR) == reads
    assert found(tmp_path, calls=GRAPHED.replace("with cuda.graph(self.graph)", "if True"), generator=GENERATOR) == []


def test_what_a_script_hands_to_the_wrapper_of_a_library_is_recorded(tmp_path):
    assert found(tmp_path, script=SCRIPT) == [("script.py", 7, "host-sync")]
