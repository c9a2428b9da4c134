"""The names by which models call what a decode step is given: those of gpt-fast, nanoGPT, transformers and vLLM.

Read by what fills the arguments of a model that comes alone (``runtime``), by what writes a runner for it
(``planning``) and by what runs an entry on abstract values (``static``).
"""

TOKENS = ("input_ids", "tokens", "token_ids", "idx", "ids", "token", "input_token", "x")
POSITIONS = ("position_ids", "positions", "input_pos", "cache_position", "position", "pos")
CACHES = ("past_key_values", "cache", "kv_cache", "kv_caches", "past_key_value", "caches")
MASKS = ("attention_mask", "mask", "attn_mask")
COUNTERS = frozenset(
    [
        "start_pos",
        "input_pos",
        "pos",
        "position",
        "cur_pos",
        "current_pos",
        "step",
        "cur_step",
        "offset",
        "cache_len",
        "cache_length",
        "kv_len",
        "kv_length",
        "seq_len",
        "seqlen",
        "cur_len",
        "current_length",
        "past_len",
        "past_length",
        "past_key_values_length",
        "context_len",
        "context_length",
        "num_tokens_so_far",
    ]
)
"""Parameters that hold the position as a number of the host, where they are integers."""
