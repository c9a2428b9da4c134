"""The generated runner of a Qwen3 beside a graph captured by hand, and token for token beside eager.

    OUT=out python benchmarks/generated_runner.py [--tiny]

Needs a GPU, torch and transformers; of capturelint only the generator, from this checkout. Writes
``$OUT/generated_runner.json`` and the runners themselves. Three questions:

1. step time: the runner's replay, and transformers' ``StaticCache`` captured by hand, in alternating blocks;
2. tokens: 128 greedy tokens at live batches 1 to 8, in bfloat16 and in float32, against two eager references, one of
   the padded batch (the same kernels) and one of the live batch (a matrix product of another shape may round
   differently, and random weights have many near ties);
3. chunks: time of a decoded token where the stop condition is read after every 1, 8 and 32 steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from capturelint.planning.probe import probe_model  # noqa: E402
from capturelint.planning.runner import Sizes, Source, loader_source, runner_source  # noqa: E402

QWEN3_0_6B = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
TINY = {**QWEN3_0_6B, **SMALL, "intermediate_size": 128, "vocab_size": 256}
BUCKETS = (1, 2, 4, 8)
MAX_LENGTH = 256
NEW_TOKENS = 128
CHUNKS = (1, 8, 32)


def generate(folder: Path, config: dict[str, object], dtype: str) -> ModuleType:
    """Write a model directory without weights, generate its runner, and load it."""
    model = folder / f"qwen3-{dtype}"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps({**config, "dtype": dtype}))
    source = Source(directory=str(model.resolve()))
    loader = folder / f"loader_{dtype}.py"
    loader.write_text(loader_source(source, loader))
    shape = probe_model(load(loader).build_model("cuda"), model.name, MAX_LENGTH)
    path = folder / f"qwen3_runner_{dtype}.py"
    path.write_text(runner_source(source, shape, Sizes(BUCKETS, BUCKETS[-1], MAX_LENGTH, 8), path))
    return load(path)


def load(path: Path) -> ModuleType:
    """Run a file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class HandCaptured:
    """One greedy step over transformers' StaticCache, captured as its users do."""

    def __init__(self, model, batch: int):
        from transformers import StaticCache

        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=MAX_LENGTH)
        self.tokens = torch.ones(batch, 1, dtype=torch.long, device="cuda")
        self.positions = torch.zeros(batch, 1, dtype=torch.long, device="cuda")
        with torch.no_grad():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.step()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.step()
        self.restart()

    def step(self) -> None:
        outputs = self.model(
            input_ids=self.tokens, position_ids=self.positions, past_key_values=self.cache, use_cache=True
        )
        self.tokens.copy_(outputs.logits[:, -1].argmax(-1, keepdim=True))
        self.positions.add_(1)

    def restart(self) -> None:
        """Back to an empty cache, in place."""
        self.positions.zero_()
        for layer in self.cache.layers:
            layer.cumulative_length.zero_()

    def replay(self) -> None:
        self.graph.replay()


def block_ms(replay, restart, steps: int) -> float:
    """Milliseconds a step over a block of back-to-back replays that starts with an empty cache."""
    restart()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps * 1e3


def compare_step_times(module: ModuleType, model, blocks: int, steps: int) -> list[dict[str, float]]:
    """Runner and hand-captured graph in alternating blocks, for each bucket."""
    runner = module.Runner(module.DecodeStep(model, "cuda"))
    begin = time.perf_counter()
    runner.warm_up()
    torch.cuda.synchronize()
    print(f"warm_up: {time.perf_counter() - begin:.2f} s", flush=True)
    rows = []
    for batch in BUCKETS:
        hand = HandCaptured(model, batch)
        times: dict[str, list[float]] = {"hand": [], "runner": [], "eager": []}
        for _ in range(blocks):
            times["hand"].append(block_ms(hand.replay, hand.restart, steps))
            times["runner"].append(block_ms(lambda size=batch: runner.replay(size), runner.positions.zero_, steps))
        with torch.no_grad():
            times["eager"].append(block_ms(lambda size=batch: runner.advance(size), runner.positions.zero_, steps // 4))
        p50 = {name: statistics.median(values) for name, values in times.items()}
        rows.append(
            {"batch": batch, **{f"{name}_ms": ms for name, ms in p50.items()}, "ratio": p50["runner"] / p50["hand"]}
        )
        print(rows[-1], flush=True)
    return rows


def prompts_for(batch: int, vocab: int) -> list[list[int]]:
    """Random prompts of 4 to 19 tokens."""
    generator = torch.Generator().manual_seed(batch)
    lengths = torch.randint(4, 20, (batch,), generator=generator).tolist()
    return [torch.randint(vocab, (length,), generator=generator).tolist() for length in lengths]


def eager_tokens(module: ModuleType, model, prompts, new: int, rows: int) -> torch.Tensor:
    """Greedy tokens [n, new] of the step without graphs, ``rows`` rows computed."""
    runner = module.Runner(module.DecodeStep(model, "cuda"))
    first = runner.prefill(prompts)
    made = torch.empty(len(prompts), new, dtype=torch.long, device="cuda")
    runner.stage(first)
    with torch.no_grad():
        for at in range(new):
            runner.advance(rows)
            made[:, at] = runner.tokens[: len(prompts), 0]
    return made


def compare_tokens(module: ModuleType, model, new: int) -> list[dict[str, object]]:
    """The runner's tokens against both references, for every live batch."""
    runner = module.Runner(module.DecodeStep(model, "cuda"))
    runner.warm_up()
    rows = []
    for batch in range(1, BUCKETS[-1] + 1):
        prompts = prompts_for(batch, module.VOCAB_SIZE)
        runner.reset()
        got = runner.decode(runner.prefill(prompts), new)
        bucket = next(size for size in BUCKETS if size >= batch)
        row: dict[str, object] = {"batch": batch, "bucket": bucket, "replays": sum(runner.hits.values())}
        row["eager_steps"] = runner.num_eager_steps
        row["distinct_tokens"] = len(set(got.flatten().tolist()))
        for name, computed in (("padded", bucket), ("live", batch)):
            wrong = got != eager_tokens(module, model, prompts, new, computed)
            first = wrong.any(0).nonzero()
            row[f"equals_{name}_eager"] = not bool(wrong.any())
            row[f"first_difference_{name}"] = int(first[0]) if len(first) else None
            row[f"rows_equal_{name}"] = int((~wrong.any(1)).sum())
        rows.append(row)
        print(row, flush=True)
    return rows


def measure_chunks(module: ModuleType, model, repeats: int, new: int) -> list[dict[str, float]]:
    """Time of a decoded token by the number of steps between two looks at the stop condition."""
    runner = module.Runner(module.DecodeStep(model, "cuda"))
    runner.warm_up()
    never = [module.VOCAB_SIZE + 1]
    rows = []
    for batch in (1, 8):
        prompts = [[1, 2, 3, 4]] * batch
        times: dict[int, list[float]] = {chunk: [] for chunk in CHUNKS}
        for _ in range(repeats):
            for chunk in CHUNKS:
                runner.reset()
                first = runner.prefill(prompts)
                torch.cuda.synchronize()
                begin = time.perf_counter()
                runner.decode(first, new, stop=never, check_every=chunk)
                torch.cuda.synchronize()
                times[chunk].append((time.perf_counter() - begin) / new * 1e3)
        for chunk, values in times.items():
            ms = statistics.median(values)
            rows.append({"batch": batch, "check_every": chunk, "ms_per_step": ms, "tokens_per_s": batch / ms * 1e3})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few steps, to try the script")
    parser.add_argument("--tokens-only", metavar="DTYPE", help="skip the step times, compare tokens in this dtype")
    arguments = parser.parse_args()
    tiny = arguments.tiny
    out = Path(os.environ.get("OUT", "."))
    config = TINY if tiny else QWEN3_0_6B
    blocks, steps, new = (2, 8, 12) if tiny else (15, 200, NEW_TOKENS)
    warnings.simplefilter("ignore", DeprecationWarning)
    import transformers

    transformers.logging.set_verbosity_error()
    record: dict[str, object] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
        "gpu": torch.cuda.get_device_name(),
        "model": config,
        "max_length": MAX_LENGTH,
        "buckets": BUCKETS,
        "tokens": {},
    }

    def save() -> None:
        (out / "generated_runner.json").write_text(json.dumps(record, indent=1))

    if not arguments.tokens_only:
        module = generate(out, config, "bfloat16")
        model = module.build_model("cuda").requires_grad_(False)
        record["step_ms"] = compare_step_times(module, model, blocks, steps)
        save()
        record["chunks"] = measure_chunks(module, model, 2 if tiny else 7, new)
        save()
        del model
    # Random weights with tied embeddings repeat one token for ever; untied, the tokens depend on all that came before.
    for dtype in [arguments.tokens_only] if arguments.tokens_only else ["bfloat16", "float32"]:
        module = generate(out, {**config, "tie_word_embeddings": False}, dtype)
        record["tokens"][dtype] = compare_tokens(module, module.build_model("cuda").requires_grad_(False), new)
        save()


if __name__ == "__main__":
    main()
