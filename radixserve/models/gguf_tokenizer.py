"""The tokenizer inside a GGUF file as tokenizer.json and tokenizer_config.json.

Byte-level BPE only: the vocabulary and the merges are in the file, but the rule that splits text
before them is only named there; SPLITTERS holds the rules behind the names. SentencePiece
vocabularies are refused: their merge order would have to be guessed. Called by `gguf_convert`.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import TemplateProcessing

Fields = dict[str, Any]

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

# from the tokenizer.json of the models themselves
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _digits() -> PreTokenizer:
    return pre_tokenizers.Digits(individual_digits=True)


def _split(pattern: str) -> PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _bytes(use_regex: bool) -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


# value of tokenizer.ggml.pre -> what splits the text before the merges
SPLITTERS: dict[str, list[PreTokenizer]] = {
    "gpt-2": [_bytes(use_regex=True)],
    "smollm": [_digits(), _bytes(use_regex=True)],
    "llama-bpe": [_split(LLAMA3_SPLIT), _bytes(use_regex=False)],
    "qwen2": [_split(QWEN2_SPLIT), _bytes(use_regex=False)],
}


def write_tokenizer(fields: Fields, context_length: int, folder: Path) -> None:
    """Write both files into `folder` from the metadata `fields` of a GGUF file.

    Raises ValueError for a kind of tokenizer that is not supported.
    """
    tokenizer = tokenizer_of(fields)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = fields["tokenizer.ggml.tokens"]
    settings: Fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
    }
    for name, kind in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = fields.get(f"tokenizer.ggml.{kind}_token_id")
        if number is not None:
            settings[f"{name}_token"] = tokens[number]
    if template := fields.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def tokenizer_of(fields: Fields) -> Tokenizer:
    """A byte-level BPE with the file's vocabulary, merges, splitting rule and special tokens."""
    model, rule = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2" or rule not in SPLITTERS:
        raise ValueError(
            f"GGUF tokenizer {model}/{rule} is not supported, only gpt2 with "
            f"{', '.join(SPLITTERS)}: use the model's safetensors checkpoint"
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    # Llama 3 takes a word that is in the vocabulary whole, even if no merges lead to it
    bpe = BPE({t: i for i, t in enumerate(tokens)}, merges, ignore_merges=rule == "llama-bpe")
    tokenizer = Tokenizer(bpe)
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITTERS[rule])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    if fields.get("tokenizer.ggml.add_bos_token"):
        number = fields["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{tokens[number]} $A", special_tokens=[(tokens[number], number)]
        )
    return tokenizer
