"""The checkpoints on which transformers' own code is served: families that differ in what they ask
of attention, and Llama, which our decoder computes too. Windows are shorter than the prompts."""

SLIDING, FULL = "sliding_attention", "full_attention"

FAMILIES = {
    "llama": ("LlamaForCausalLM", {}),
    "gpt2": ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt-neox": ("GPTNeoXForCausalLM", {"use_parallel_residual": True}),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": 20}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {"sliding_window": 20, "attn_logit_softcapping": 2.0, "num_hidden_layers": 3},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            "sliding_window": 11,
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
        },
    ),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "sliding_window": None}),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
}
