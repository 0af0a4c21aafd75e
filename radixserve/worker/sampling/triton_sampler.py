"""The sampler made of Triton kernels, with its state on the device: nothing waits for a token.

Compiled on a GPU, in Triton's interpreter on a CPU (slow). The host packs what it knows of each row
into one copy; what only the device knows, the last tokens and the counts of tokens, stays there.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from radixserve.messages import Admit, Sampling
from radixserve.worker.sampling.grammar import Grammars, MaskedRows
from radixserve.worker.sampling.sampler import BARRED, LOGPROB_FLOOR, Logprobs, Sampled
from radixserve.worker.upload import upload
from radixserve_kernels.sampling_params import COLUMNS, Edits, Params, pack, pack_edits

POSITION = COLUMNS.index("position")


class TritonSampler:
    """The `Sampler` of `radixserve_kernels`. Imports triton when made, not before."""

    last_tokens: Tensor

    def __init__(
        self, max_slots: int, vocab_size: int, device: torch.device, grammars: Grammars
    ) -> None:
        if device.type == "cpu":
            from radixserve_kernels.interpret import enable

            enable()  # has to come before the kernels are imported
        self._vocab_size = vocab_size
        self.last_tokens = torch.zeros(max_slots, dtype=torch.int32, device=device)
        # [max_slots, vocab] int32 from the first request on that needs its history
        self._counts = torch.zeros((max_slots, 0), dtype=torch.int32, device=device)
        self._params = np.zeros((max_slots, len(COLUMNS)), dtype=np.int64)
        self._samplings: list[Sampling | None] = [None] * max_slots
        self._masked = MaskedRows(grammars, device)
        self._generated = np.zeros(max_slots, dtype=np.int64)  # as far as steps were submitted

    def admit(self, admit: Admit) -> None:
        self._masked.admit(admit)
        sampling = admit.sampling
        history = np.frombuffer(admit.history, dtype=np.int32)
        self._samplings[admit.slot] = sampling
        self._generated[admit.slot] = max(0, len(history) - admit.prompt_len)
        self._params[admit.slot] = pack([_params(admit.slot, sampling)])[0]
        if sampling.needs_history:
            self._count(admit.slot, history, admit.prompt_len)

    def free(self, slot: int) -> None:
        self._samplings[slot] = None
        self._masked.free(slot)

    def sample(self, logits: Tensor, slots: Sequence[int], positions: Sequence[int]) -> Sampled:
        from radixserve_kernels.edit_logits import edit_logits
        from radixserve_kernels.sample import sample

        samplings = [self._sampling(slot) for slot in slots]
        params = self._params[list(slots)]
        params[:, POSITION] = positions
        tensors = self._upload(params, self._edits(slots, samplings))
        packed = tensors.pop("params").view(torch.int64)
        asked = [row for row, sampling in enumerate(samplings) if sampling.top_logprobs >= 0]
        raw = None
        if asked:
            index = upload({"rows": np.array(asked)}, logits.device)["rows"]
            raw = logits.index_select(0, index).log_softmax(-1)
            raw = raw.nan_to_num_(nan=LOGPROB_FLOOR).clamp_(min=LOGPROB_FLOOR)  # NaN: a lost row's
        barred = self._masked.mask(logits, slots)
        amounts = tensors["amount"].view(torch.float32)
        edits = (tensors["start"], tensors["token"], amounts)
        maxima = edit_logits(logits, packed, self._counts, *edits)
        tokens = sample(logits, packed, maxima, self._counts, self.last_tokens)
        if barred:
            rows = upload({"rows": np.array(barred)}, tokens.device)["rows"]
            tokens.index_fill_(0, rows.long(), BARRED)
        self._masked.choose(tokens, slots)
        self._generated[list(slots)] += 1
        if raw is None:
            return Sampled(tokens)
        wanted = [min(samplings[row].top_logprobs, self._vocab_size) for row in asked]
        values, ids = raw.topk(max(wanted))
        of_lost = tokens.index_select(0, index).clamp(min=0).long()
        chosen = raw.gather(1, of_lost[:, None])[:, 0]
        return Sampled(tokens, Logprobs(asked, wanted, chosen, ids, values))

    def _sampling(self, slot: int) -> Sampling:
        sampling = self._samplings[slot]
        assert sampling is not None, f"slot {slot} samples but no request was admitted to it"
        return sampling

    def _edits(self, slots: Sequence[int], samplings: Sequence[Sampling]) -> Edits:
        bias = [
            (row, token, amount)
            for row, sampling in enumerate(samplings)
            for token, amount in sampling.logit_bias
        ]
        masked = [
            (row, token)
            for row, (slot, sampling) in enumerate(zip(slots, samplings, strict=True))
            if self._generated[slot] < sampling.min_tokens
            for token in sampling.stop_ids
        ]
        return pack_edits(len(slots), bias, masked)

    def _upload(self, params: np.ndarray, edits: Edits) -> dict[str, Tensor]:
        """All in one copy; what is not int32 travels as its bits."""
        arrays = {
            "params": params.view(np.int32),
            "start": edits.start,
            "token": edits.token,
            "amount": edits.amount.view(np.int32),
        }
        return upload(arrays, self.last_tokens.device)

    def _count(self, slot: int, history: np.ndarray, prompt_len: int) -> None:
        """Counts of the slot as `edit_logits` reads them, whatever stood there."""
        if not self._counts.shape[1]:
            shape = (len(self._counts), self._vocab_size)
            self._counts = torch.zeros(shape, dtype=torch.int32, device=self._counts.device)
        counts = np.zeros(self._vocab_size, dtype=np.int32)
        np.add.at(counts, history[prompt_len:], 2)
        counts[history[:prompt_len]] |= 1
        self._counts[slot].copy_(upload({"counts": counts}, self._counts.device)["counts"])


def _params(slot: int, sampling: Sampling) -> Params:
    return Params(
        slot=slot,
        history=sampling.needs_history,
        repetition=sampling.repetition_penalty,
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
    )
