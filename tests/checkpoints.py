"""Tiny random checkpoints with a tokenizer, for tests of every room.

Not real models: few layers of random weights, made by transformers from a fixed seed, with a spread
wide enough for greedy answers to have clear winners. The tokenizer is a byte-level BPE of 512 ids
with a ChatML template, so any text can be encoded. One call takes about a second.
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB_SIZE = 512
CONTEXT_LENGTH = 512
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
END_OF_TEXT, IM_START, IM_END = range(3)
MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRAINING_TEXT = """
A radix tree keeps the token ids of many requests so that a prefix which two of them share is stored
once. When a request arrives the tree is walked from its root; the longest path whose tokens agree
with the prompt names pages of keys and values that need not be computed again. The rest of the
prompt is computed, given to the tree, and found by whoever asks next. Pages that nobody holds are
evicted, the least recently used first. What is the capital of France? The capital of France is
Paris. You are a helpful assistant. Write a short story about a lighthouse keeper and his cat. Once
upon a time there was a small house by the sea, and the wind was strong. def main(): return 0
import json, for x in range(10): print(x) {"name": "get_weather", "arguments": {"city": "Berlin"}}
The quick brown fox jumps over the lazy dog while seven wizards quietly boxed up the jars of honey.
"""


def tiny_checkpoint(folder: Path, arch: str = "LlamaForCausalLM", **overrides: object) -> Path:
    """Write a Hugging Face checkpoint of architecture `arch` into `folder`, and return `folder`.

    `overrides` are fields of the transformers config (`num_hidden_layers=1`, for example). The
    same arguments always give the same weights. Norm weights and biases are random too, so a
    missing one shows. float32 unless `dtype` says otherwise.
    """
    settings: dict[str, object] = {
        "architectures": [arch],
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": CONTEXT_LENGTH,
        "initializer_range": 0.15,
        "tie_word_embeddings": False,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
        "dtype": "float32",
    }
    config = AutoConfig.for_model(MODEL_TYPES[arch], **settings | overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim == 1:  # a norm weight (1 at first) or a bias (0 at first)
                parameter.data += torch.randn_like(parameter) * 0.1
    model.save_pretrained(folder)
    write_tokenizer(folder, config.max_position_embeddings)
    return folder


def write_tokenizer(folder: Path, context_length: int = CONTEXT_LENGTH) -> None:
    """Write tokenizer.json and tokenizer_config.json (with the ChatML template) into `folder`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=1,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, "the training text is too short"
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
