"""``hf:DIRECTORY`` and ``hf:MODEL_TYPE``: a transformers causal language model becomes a target.

Weights are loaded where the directory has some and random else; the cache is transformers' own ``StaticCache``, new
for every bucket and filled by a short prefill, so that the steps verified are decode steps. Which keywords a model's
``forward`` takes differs; the first of three ways to call it that works is used.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from capturelint.errors import DeviceError, TargetError
from capturelint.runtime.target import Inputs, Target

PREFIX = 6
"""Tokens of the prefill: decode starts behind them."""

TINY: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "mamba_n_heads"), 4),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"), 128),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 128),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 128),
    **dict.fromkeys(("max_sequence_length", "seq_length"), 128),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "mamba_d_head"), 32),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_top_k", "num_key_value_heads"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "num_global_layers"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "v_head_dim", "head_dim", "d_kv"), 16),
    **dict.fromkeys(("sliding_window", "attention_window", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "laurel_rank"), 8),
    **dict.fromkeys(("state_size", "mamba_d_state", "mamba_n_groups", "ssm_state_size"), 8),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 256),
    **dict.fromkeys(("expand", "n_groups"), 1),
    "pad_token_id": 0,
    **dict.fromkeys(("bos_token_id", "moe_layer_freq"), 1),
    **dict.fromkeys(("eos_token_id",), 2),
    **dict.fromkeys(("conv_kernel",), 4),
}
"""Sizes of a tiny configuration, for every name that transformers' configurations use."""

Forward = Callable[..., Any]


@dataclass(slots=True)
class Decoder:
    """The state of a transformers target: the model, its configuration, and the bucket's cache."""

    model: Any
    config: Any
    cache: Any = None
    way: str = ""


def hf_target(spec: str, tiny: bool, max_length: int) -> Target:
    """The target that ``spec`` names, without its ``hf:``. Raises ``TargetError`` or ``DeviceError``."""
    if importlib.util.find_spec("transformers") is None:
        raise DeviceError("hf: targets need transformers; install it with: pip install 'capturelint[transformers]'")
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    config = configuration(spec, tiny)
    length = min(max_length, getattr(config.get_text_config(), "max_position_embeddings", max_length) or max_length)

    def prepare(state: object, batch: int) -> None:
        assert isinstance(state, Decoder)
        state.cache, state.way = prefilled(state, batch, length)

    def inputs(batch: int, step: int, device: str) -> Inputs:
        position = torch.tensor([PREFIX + step], device=device)
        return {"token": tokens(config, batch, 1, step + 1).to(device), "position": position}

    def build(device: str) -> Decoder:
        torch.manual_seed(0)
        return Decoder(load(spec, config).to(device).eval(), config)

    return Target(
        build, inputs, decode, (Path(str(transformers.__file__)).parent,), prepare, max(length - PREFIX - 1, 0)
    )


def configuration(spec: str, tiny: bool) -> Any:  # noqa: ANN401 - transformers' configurations have no common type
    """The configuration of a directory or of a model type. Raises ``TargetError``."""
    transformers = importlib.import_module("transformers")
    mapping = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING
    directory = Path(spec)
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise TargetError(f"hf:{spec}: no config.json in it")
        return transformers.AutoConfig.from_pretrained(spec, local_files_only=True)
    known = {kind.model_type: kind for kind in mapping}
    if spec not in known:
        raise TargetError(f"hf:{spec}: no directory, and no causal language model of this transformers has that type")
    return shrunk(known[spec]) if tiny else known[spec]()


def shrunk(kind: Any) -> Any:  # noqa: ANN401 - transformers' configurations have no common type
    """A tiny configuration: every size in ``TINY`` that the class has and accepts, one layer of each type twice.

    Sizes that must agree, as heads and their width with the hidden size, are accepted together or not at all.
    """
    base = kind()
    chosen: dict[str, object] = {}
    layer_types = getattr(base, "layer_types", None)
    if isinstance(layer_types, list):
        kinds = list(dict.fromkeys(layer_types))
        types = (kinds * 2)[: max(2, len(kinds))]
        wanted: dict[str, object] = {"layer_types": types, "num_hidden_layers": len(types)}
        chosen = wanted if accepts(kind, wanted) else {}
    refused: dict[str, object] = {}
    for name, size in TINY.items():
        fits = hasattr(base, name) and not isinstance(getattr(base, name), (list, dict))
        if name not in chosen and fits:
            (chosen if accepts(kind, {**chosen, name: size}) else refused)[name] = size
    return kind(**chosen, **refused) if accepts(kind, {**chosen, **refused}) else kind(**chosen)


def accepts(kind: Any, arguments: Mapping[str, object]) -> bool:  # noqa: ANN401
    """Whether a configuration class takes these sizes; each class checks in its own way."""
    try:
        kind(**arguments)
    except Exception:  # noqa: BLE001 - configurations raise what they like
        return False
    return True


def load(spec: str, config: Any) -> Any:  # noqa: ANN401
    """The model: its weights where the directory has any, random ones else."""
    auto = importlib.import_module("transformers").AutoModelForCausalLM
    directory = Path(spec)
    if any(directory.glob("*.safetensors")) or any(directory.glob("pytorch_model*.bin")):
        return auto.from_pretrained(spec, dtype=torch.bfloat16, local_files_only=True)
    try:
        return auto.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    except ValueError as error:
        if "attn" not in str(error) and "attention implementation" not in str(error):
            raise
        return auto.from_config(config, attn_implementation="eager", dtype=torch.bfloat16)


def tokens(config: Any, batch: int, length: int, seed: int) -> torch.Tensor:  # noqa: ANN401
    """Random token ids, above the special ones."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = min(getattr(config.get_text_config(), "vocab_size", 256), 256)
    return torch.randint(3, vocabulary, (batch, length), generator=generator)


def prefilled(state: Decoder, batch: int, length: int) -> tuple[Any, str]:
    """A static cache after a prefill, and the way of calling the model that worked. Raises ``TargetError``."""
    static_cache = importlib.import_module("transformers").StaticCache
    refused: Exception | None = None
    device = next(state.model.parameters()).device
    for way in (state.way,) if state.way else tuple(WAYS):
        cache = static_cache(config=state.config, max_cache_len=length)
        try:
            with torch.no_grad():
                prompt = tokens(state.config, batch, PREFIX, 0).to(device)
                WAYS[way](state.model, prompt, torch.arange(PREFIX, device=device), cache)
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, NotImplementedError) as error:
            refused = error
        else:
            return cache, way
    raise TargetError(f"{type(state.model).__name__} does not prefill with a StaticCache: {refused}") from refused


def decode(state: object, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """One decode step."""
    assert isinstance(state, Decoder)
    logits: torch.Tensor = WAYS[state.way](state.model, token, position, state.cache)
    return logits


def with_both_positions(model: Forward, token: torch.Tensor, position: torch.Tensor, cache: object) -> torch.Tensor:
    """Most models: position ids a row, and the cache's position."""
    ids = position[None].expand(token.shape[0], -1)
    return logits_of(
        model(input_ids=token, position_ids=ids, cache_position=position, past_key_values=cache, use_cache=True)
    )


def with_cache_position(model: Forward, token: torch.Tensor, position: torch.Tensor, cache: object) -> torch.Tensor:
    """Models that work their position ids out by themselves."""
    return logits_of(model(input_ids=token, cache_position=position, past_key_values=cache, use_cache=True))


def with_cache_only(model: Forward, token: torch.Tensor, position: torch.Tensor, cache: object) -> torch.Tensor:
    """Models that ask the cache where they are."""
    return logits_of(model(input_ids=token, past_key_values=cache, use_cache=True))


def logits_of(output: Any) -> torch.Tensor:  # noqa: ANN401 - one output class a model
    """The logits of a model's output."""
    logits: torch.Tensor = output.logits
    return logits


WAYS: Mapping[str, Forward] = {
    "both": with_both_positions,
    "cache_position": with_cache_position,
    "cache": with_cache_only,
}
