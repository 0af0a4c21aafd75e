"""Tokenizer folders made on the spot, of the two kinds there are: byte-level and sentencepiece."""

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = [
    "A radix tree keeps the tokens of many requests. Stop here, beta gamma and own fox.",
    "Příliš žluťoučký kůň. 日本語のテキスト 🎉🎉 שלום עולם",
    '{"name": "get_weather", "arguments": {"city": "Paris"}} one two three four five',
]
CHATML = (
    "{{ bos_token }}"
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
BOS, IM_START, IM_END = range(3)


def byte_level(folder: Path, *, template: str | None = CHATML, bos: bool = False) -> Path:
    """Byte-level BPE of 400 ids; with `bos` it puts <s> before each text by itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", BOS)]
        )
    return _write(folder, tokenizer, template)


def sentencepiece(folder: Path) -> Path:
    """BPE as converted from sentencepiece (Llama 2): U+2581, byte fallback, BOS, Strip."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=360, special_tokens=[*SPECIAL, "<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXT[:1], trainer)
    data = json.loads(tokenizer.to_str())
    vocab = data["model"]["vocab"]
    for piece in fallback:
        vocab[piece] = len(vocab)
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    return _write(folder, tokenizer, CHATML)


def _write(folder: Path, tokenizer: Tokenizer, template: str | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [IM_END]}))
    return folder
