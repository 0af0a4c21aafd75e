"""A model's vocabulary, read from the tokenizer files of a Hugging Face folder.

Knows for each id the exact bytes it stands for, which ids are special, and which end an answer. It
does not decode sequences (`decode.py`) and never imports torch or transformers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from tokenizers import Tokenizer

NAMED_TOKENS = tuple(f"{name}_token" for name in ["bos", "eos", "unk", "pad", "sep", "cls", "mask"])
Parts: TypeAlias = Sequence[str | list[int]]  # of a prompt: text, or token ids as they are
SPIECE_SPACE = "\u2581"  # how sentencepiece writes a space


class _TokenizerFile(msgspec.Struct):
    """The only part of tokenizer.json that is read beside the tokenizers library."""

    decoder: dict[str, Any] | None = None


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable bytes are themselves, the rest from U+0100.

    The table of GPT-2's `bytes_to_unicode` (Radford et al. 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTE_OF = byte_alphabet()


class Vocabulary:
    """Ids, bytes and special tokens of one model. Read-only after construction; thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Read `folder`. FileNotFoundError without tokenizer.json, ValueError for an odd one."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{folder} has no tokenizer.json")
        data = path.read_bytes()
        self._tokenizer = Tokenizer.from_buffer(data)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._read_decoder(msgspec.json.decode(data, type=_TokenizerFile).decoder)

        self.settings = {
            **_read_json(folder / "special_tokens_map.json"),
            **_read_json(folder / "tokenizer_config.json"),
        }
        self.named_tokens = self._find_named_tokens()  # as templates know them: {"bos_token": ...}
        self._added = self._tokenizer.get_added_tokens_decoder()
        self.eos_ids = self._find_eos_ids(folder)
        special = (i for i, token in self._added.items() if token.special)
        self.special_ids = frozenset((*special, *self.eos_ids))
        # added tokens that a text is never encoded to by its letters: special ones, by spelling
        self.special_tokens = {t.content: i for i, t in self._added.items() if t.special}
        self._bos_ids = self._find_bos_ids()
        # A bound on the bytes of one token; real bytes are never more than their spelling's.
        self.longest_token = max(len(t.encode()) for t in self._tokenizer.get_vocab())
        self._bytes: dict[int, bytes] = {}

    def _read_decoder(self, decoder: dict[str, Any] | None) -> None:
        steps = [decoder] if decoder else []
        if decoder and decoder["type"] == "Sequence":
            steps = decoder["decoders"]
        kinds = {step["type"] for step in steps}
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        if not kinds & {"ByteLevel", "ByteFallback", "Metaspace", "Replace"}:
            raise ValueError(f"tokenizers with the decoder {sorted(kinds)} are not supported")
        self.strips_leading_space = any(
            (step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)
            or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in steps
        )

    def _find_named_tokens(self) -> dict[str, str]:
        found = {}
        for name in NAMED_TOKENS:
            value = self.settings.get(name)
            if isinstance(value, dict):  # an AddedToken as old files spell it
                value = value.get("content")
            if value:
                found[name] = value
        return found

    def _named_id(self, name: str) -> int | None:
        text = self.named_tokens.get(name)
        found: int | None = self._tokenizer.token_to_id(text) if text else None
        return found

    def _find_eos_ids(self, folder: Path) -> tuple[int, ...]:
        ids: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            value = _read_json(folder / name).get("eos_token_id")
            ids.update([value] if isinstance(value, int) else value or [])
        if (named := self._named_id("eos_token")) is not None:
            ids.add(named)
        return tuple(sorted(ids))

    def _find_bos_ids(self) -> list[int]:
        """What the tokenizer itself puts before a text: [the BOS id] or []."""
        bos = self._named_id("bos_token")
        around = self._tokenizer.encode("", add_special_tokens=True).ids
        return [bos] if bos is not None and around[:1] == [bos] else []

    def encode(self, text: str | Parts, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens written out in the text become their ids.

        With `add_special_tokens`, BOS is put in front where this tokenizer does so and the text
        does not begin with it already: there is never more than one. Nothing is put behind. Parts
        are encoded each by itself: behind ids, text should begin with a special token.
        """
        parts = [text] if isinstance(text, str) else text
        texts = [part for part in parts if isinstance(part, str)]
        # The batch call lets go of the interpreter lock, the single one does not.
        encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        ids: list[int] = []
        for part in parts:
            ids += next(encoded).ids if isinstance(part, str) else part
        if add_special_tokens and ids[:1] != self._bos_ids:
            return self._bos_ids + ids
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; b"" for an id without a token."""
        data = self._bytes.get(token)
        if data is None:
            data = self._bytes[token] = self._find_bytes(token)
        return data

    def _find_bytes(self, token: int) -> bytes:
        if token in self._added:
            return str(self._added[token].content).encode()
        piece: str | None = self._tokenizer.id_to_token(token) if token >= 0 else None
        if piece is None:
            return b""
        if self._byte_level:
            if all(char in BYTE_OF for char in piece):
                return bytes(BYTE_OF[char] for char in piece)
            return piece.encode()
        if self._byte_fallback and len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(SPIECE_SPACE, " ").encode()

    def spelling(self, token: int) -> str:
        """How tokenizer.json spells `token`, e.g. "Ġhi" or "▁hi"; "" for an id without a token."""
        piece: str | None = self._tokenizer.id_to_token(token)
        return piece or ""

    def token_text(self, token: int) -> str:
        """One token for display; a part of a character is spelled like `bytes:\\xe2\\x82`."""
        data = self.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object; empty if there is no such file."""
    if not path.is_file():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
