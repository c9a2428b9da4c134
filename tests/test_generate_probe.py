import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pathlib import Path  # noqa: E402

from capturelint.errors import TargetError  # noqa: E402
from capturelint.planning.probe import Geometry, Kind, Layout, Shape, probe_model, probe_plain  # noqa: E402
from capturelint.runtime.target import load_module  # noqa: E402

FIXTURES = Path(__file__).parents[1] / "fixtures" / "generate"


@pytest.fixture(autouse=True)
def unchanged_modules(monkeypatch):
    """Targets are loaded as modules of their own name."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (FIXTURES / f"{name}.py").exists():
            del sys.modules[name]


def shape_of(name: str) -> Shape:
    module = load_module(FIXTURES / f"{name}.py")
    if hasattr(module, "step"):
        return probe_plain(module, "cpu", name, 4, 64)
    return probe_model(module.build("cpu"), name, 64)


def test_gptfasts_caches_and_shared_position_are_found():
    shape = shape_of("gptfast")
    assert (shape.kind, shape.cache_names, shape.shared) == (Kind.SETUP, ("k_cache", "v_cache"), True)
    assert (shape.vocab_size, shape.logits, shape.whole_prompt) == (96, "", True)


def test_a_cache_is_shaped_by_what_the_model_keeps():
    shape = shape_of("decoder")
    assert (shape.kind, shape.geometry) == (Kind.CACHE, Geometry(2, 2, 8, "torch.float32"))
    assert (shape.tokens, shape.positions) == (("tokens", Layout.FLAT), ("positions", Layout.FLAT))
    assert (shape.mask, shape.logits, shape.whole_prompt) == ("mask", "[:, None]", False)


def test_a_plain_target_is_shaped_by_its_inputs():
    assert shape_of("plain").positions == ("positions", Layout.FLAT)
    assert shape_of("counted").positions is None
    assert shape_of("counted").shared


class Model(torch.nn.Module):
    """A model whose ``forward`` and outputs can be chosen."""

    def __init__(self, outputs=None, config=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 8))
        self.outputs = outputs
        self.config = config

    def forward(self, tokens, positions, cache):
        """Keeps one key and value in one layer."""
        x = self.weight[tokens % 4]
        cache.update(x[:, None], x[:, None], 0)
        return x if self.outputs is None else self.outputs


class WithoutPositions(Model):
    def forward(self, tokens, cache):
        return super().forward(tokens, None, cache)


class WithMore(Model):
    def forward(self, tokens, positions, cache, images):
        return super().forward(tokens, positions, cache)


class WithoutUpdate(Model):
    def forward(self, tokens, positions, cache):
        return self.weight[tokens % 4]


class Uneven(Model):
    def forward(self, tokens, positions, cache):
        x = self.weight[tokens % 4]
        cache.update(x[:, None, :, :4], x[:, None], 0)
        return x


@dataclass
class Sliding:
    layer_types: tuple[str, ...] = ("full_attention", "sliding_attention")
    sliding_window: int | None = 32


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (WithoutPositions(), "no positions among forward's parameters"),
        (WithMore(), "forward needs `images`"),
        (WithoutUpdate(), "never calls `update` of its cache"),
        (Uneven(), "keys and values of different shapes"),
        (Model(outputs=torch.ones(7)), r"expected logits \[2, 1, vocab\] or \[2, vocab\], found \[7\]"),
        (Model(config=Sliding()), "layers attend to a window of 32 positions"),
        (Model(config=SimpleNamespace(layer_types=None, sliding_window=16)), "a window of 16 positions"),
        (Model(config=Sliding(("full_attention", "linear_attention"), None)), "layers of type `linear_attention`"),
        (torch.nn.Identity(), "no tokens among forward's parameters|no floating-point parameter"),
    ],
)
def test_models_that_no_static_cache_fits_are_refused(model, message):
    with pytest.raises(TargetError, match=message):
        probe_model(model, "model", 64)


def test_a_window_as_long_as_the_cache_is_exact():
    assert probe_model(Model(config=Sliding(sliding_window=64)), "model", 64).geometry == Geometry(
        1, 1, 8, "torch.float32"
    )


def plain(given):
    return SimpleNamespace(
        build=lambda device: None,
        inputs=lambda batch, step, device: given(batch),
        step=lambda state, **inputs: torch.ones(next(iter(inputs.values())).shape[0], 5),
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda batch: {"frame": torch.ones(batch, 1)}, "feeds token ids and, if asked for, positions; found frame"),
        (lambda batch: {"tokens": torch.ones(batch, 1)}, "feeds token ids"),
        (lambda batch: {"tokens": torch.ones(batch, 1).long(), "slots": torch.ones(batch)}, "found tokens, slots"),
        (lambda batch: {"tokens": torch.ones(batch, 3).long()}, r"`tokens` has shapes \(2, 3\) and \(3, 3\)"),
    ],
)
def test_plain_targets_that_no_loop_can_feed_are_refused(given, message):
    with pytest.raises(TargetError, match=message):
        probe_plain(plain(given), "cpu", "target", 4, 64)
