"""The checkpoints on which the decoder is compared with transformers: every architecture, and what
may differ within one. A new entry of `MODELS` without a variant here fails `test_decoder`."""

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}

VARIANTS = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama-biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("LlamaForCausalLM", {"rope_parameters": LLAMA3}),
    "llama-linear": ("LlamaForCausalLM", {"rope_parameters": LINEAR}),
    "llama-one-head-group": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "llama-no-groups": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "mistral-wide-heads": ("MistralForCausalLM", {"sliding_window": None, "head_dim": 24}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2-yarn": ("Qwen2ForCausalLM", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "qwen3-yarn": ("Qwen3ForCausalLM", {"rope_parameters": YARN | {"attention_factor": 1.3}}),
    "qwen3-biases": ("Qwen3ForCausalLM", {"attention_bias": True}),
}
