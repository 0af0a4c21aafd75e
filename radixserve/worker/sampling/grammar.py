"""Answers that must fit a grammar or a list of ids: which tokens each such row may choose next.

llguidance holds the grammars (Earley parsing over a lexer of regular expressions, with masks over
the vocabulary's prefix tree) in threads of its own; here they are followed slot by slot. Called by
the samplers. A row's mask depends on the token it chose last, so the host looks at that one token,
but only once the next step's forward pass is enqueued: the device computes meanwhile.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from radixserve.messages import Admit
from radixserve.worker.upload import upload

log = logging.getLogger(__name__)

COMPILE_THREADS = 2
WORD = 32  # tokens in a word of a mask


class Grammars:
    """Compiles grammars for one vocabulary. The tokenizer is read when the first one comes."""

    def __init__(self, folder: Path, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """`folder` has a tokenizer.json; `vocab_size` is the number of logits."""
        self.vocab_size = vocab_size
        self._file = folder / "tokenizer.json"
        self._eos_ids = list(eos_ids)
        self._tokenizer: Any = None
        self._pool = ThreadPoolExecutor(COMPILE_THREADS, thread_name_prefix="grammar")

    def start(self, grammar: str, answer: Sequence[int]) -> "Future[Any]":
        """A matcher that has consumed the tokens of `answer`, when it is ready.

        None if there can be none: a tokenizer that llguidance cannot read costs one request its
        answer, and not all of them the worker.
        """
        return self._pool.submit(self._compile, grammar, list(answer))

    def _compile(self, grammar: str, answer: list[int]) -> Any:
        try:
            return self._matcher(grammar, answer)
        except Exception:
            log.exception("no grammar can be followed with %s", self._file)
            return None

    def _matcher(self, grammar: str, answer: list[int]) -> Any:
        import llguidance  # not needed by who has no such requests

        if self._tokenizer is None:
            self._tokenizer = llguidance.LLTokenizer(
                self._file.read_text(encoding="utf-8"),
                n_vocab=self.vocab_size,
                eos_token=self._eos_ids or None,
            )
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        matcher.consume_tokens(answer)
        return matcher


class Followed(NamedTuple):
    """One slot's request."""

    matcher: "Future[Any] | None"  # None: no grammar
    stop_ids: tuple[int, ...]
    allowed: np.ndarray | None  # [words] int32, a bit for each token; None: no list


class Chosen(NamedTuple):
    """Tokens under way to the host, and whose they are."""

    tokens: Tensor  # [S] int32
    rows: list[tuple[int, Followed]]
    arrived: torch.cuda.Event | None


class MaskedRows:
    """The grammars and lists of running requests, and where each grammar stands."""

    def __init__(self, grammars: Grammars, device: torch.device) -> None:
        self._grammars = grammars
        self._words = -(-grammars.vocab_size // WORD)
        self._device = device
        self._followed: dict[int, Followed] = {}  # by slot
        self._chosen: list[Chosen] = []

    def admit(self, admit: Admit) -> None:
        """Begin with the answer that a preempted request already has. Needs `Admit.history`."""
        sampling = admit.sampling
        matcher = allowed = None
        if sampling.grammar:
            answer = np.frombuffer(admit.history, dtype=np.int32)[admit.prompt_len :].tolist()
            matcher = self._grammars.start(sampling.grammar, answer)
        if sampling.allowed_ids:
            bits = np.zeros(self._words * WORD, dtype=np.uint8)
            bits[np.frombuffer(sampling.allowed_ids, dtype=np.int32)] = 1
            allowed = np.packbits(bits, bitorder="little").view(np.int32)
        if matcher is not None or allowed is not None:
            self._followed[admit.slot] = Followed(matcher, sampling.stop_ids, allowed)

    def free(self, slot: int) -> None:
        self._followed.pop(slot, None)

    def follows(self, slots: Sequence[int]) -> bool:
        """Whether `mask` changes anything."""
        return not self._followed.keys().isdisjoint(slots)

    def mask(self, logits: Tensor, slots: Sequence[int]) -> list[int]:
        """Set what a row may not choose to -inf, in place. Returns rows that may choose nothing.

        `logits` [S, vocab] float32; `slots` [S].
        """
        rows = [row for row, slot in enumerate(slots) if slot in self._followed]
        if not rows:
            return []
        self._consume()
        masks = np.zeros((len(rows), self._words), dtype=np.int32)
        for mask, row in zip(masks, rows, strict=True):
            self._fill(mask, self._followed[slots[row]])
        given = upload({"masks": masks, "rows": np.array(rows)}, self._device)
        bits = torch.arange(WORD, dtype=torch.int32, device=self._device)
        allowed = (given["masks"][:, :, None] >> bits) & 1
        barred = allowed.flatten(1)[:, : logits.shape[1]] == 0
        index = given["rows"].long()
        logits.index_copy_(0, index, logits.index_select(0, index).masked_fill_(barred, -torch.inf))
        return [row for row, mask in zip(rows, masks, strict=True) if not mask.any()]

    def choose(self, tokens: Tensor, slots: Sequence[int]) -> None:
        """Take note of what rows chose; `tokens` [S] int32 on the device is not waited for."""
        found = ((row, self._followed.get(slot)) for row, slot in enumerate(slots))
        rows = [(row, each) for row, each in found if each and each.matcher is not None]
        if not rows:
            return
        arrived = None
        host = tokens.to("cpu", non_blocking=True)
        if self._device.type == "cuda":
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._chosen.append(Chosen(host, rows, arrived))

    def _consume(self) -> None:
        """Bring all grammars up to the last tokens of their rows."""
        for tokens, rows, arrived in self._chosen:
            if arrived is not None:
                arrived.synchronize()
            values = tokens.tolist()
            for row, (compiled, stop_ids, _) in rows:
                matcher = compiled.result() if compiled is not None else None
                if matcher is not None and values[row] >= 0 and values[row] not in stop_ids:
                    matcher.consume_token(values[row])
        self._chosen.clear()

    def _fill(self, mask: np.ndarray, followed: Followed) -> None:
        """The tokens that may come next; none if the grammar does not compile, or is at an end.

        Where it may be at its end, stop ids may come whatever the list says.
        """
        if followed.matcher is None:
            mask[:] = followed.allowed
            return
        matcher = followed.matcher.result()
        if matcher is None or matcher.is_error():
            return
        found = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[: len(mask)]
        mask[:] = found
        past = self._grammars.vocab_size % WORD
        if past:
            mask[-1] &= (1 << past) - 1
        if followed.allowed is not None:
            mask &= followed.allowed
        if matcher.is_accepting():
            for token in followed.stop_ids:
                mask.view(np.uint32)[token // WORD] |= np.uint32(1 << token % WORD)
