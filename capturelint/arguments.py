"""The names by which models call what a decode step is given: those of gpt-fast, nanoGPT, transformers and vLLM.

Read by what fills the arguments of a model that comes alone (``runtime``) and by what writes a runner for it
(``planning``).
"""

TOKENS = ("input_ids", "tokens", "token_ids", "idx", "ids", "token", "input_token", "x")
POSITIONS = ("position_ids", "positions", "input_pos", "cache_position", "position", "pos")
CACHES = ("past_key_values", "cache", "kv_cache", "kv_caches", "past_key_value", "caches")
MASKS = ("attention_mask", "mask", "attn_mask")
