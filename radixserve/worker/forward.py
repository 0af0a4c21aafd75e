"""From a step's rows to logits: by launching each kernel, or by replaying a CUDA graph.

Small steps keep a GPU waiting for launches: decode steps, and the few new tokens behind a long
cached prefix. A graph launches all kernels of a step at once. It reads the same memory each time:
there is one for each of some numbers of tokens, and a step is padded to the next of them. On a CPU
"replaying" runs the same code on the same memory, so that tests see all but the capture itself.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from radixserve.models.decoder import Decoder
from radixserve.worker.attention import Attention, StepPlan
from radixserve.worker.batch import INPUTS, Batch, HostBatch, Repeats, bring, with_last
from radixserve.worker.upload import FixedInputs

PADDING = {"write_slots": -1}  # of the tokens that a step has not; of other inputs 0


def graph_sizes(most: int) -> list[int]:
    """Numbers of tokens up to `most` that have a graph: steps of a fifth to a half in between."""
    sizes = [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    sizes += range(160, 257, 32)
    sizes += range(320, most + 1, 64)
    return [size for size in sizes if size < most] + [most] * (most > 0)


class Computed(NamedTuple):
    """What comes of a batch."""

    logits: Tensor  # [S, vocab] float32, of the sampled rows
    scored: Tensor  # [N, hidden size], what gives the logits of the scored tokens


class Forward:
    """The decoder over the steps' batches. Not for two steps at a time."""

    def __init__(
        self,
        decoder: Decoder,
        attention: Attention,
        last_tokens: Tensor,
        page_table: Tensor,
        sizes: Sequence[int],
    ) -> None:
        """`last_tokens` and `page_table`: the sampler's and the slots', on the device.

        `sizes`: numbers of tokens to make graphs for, ascending; none where the attention cannot.
        """
        self._decoder = decoder
        self._attention = attention
        self._last_tokens = last_tokens
        self._page_table = page_table
        self._graphs: list[Graph] = []
        self.replayed = 0  # steps that a graph has computed
        if not sizes or attention.fixed_shapes(1) is None:
            return
        pool = None
        shape = (sizes[-1], decoder.spec.vocab_size)
        logits = torch.empty(shape, dtype=torch.float32, device=page_table.device)
        # the largest first: the others then find room in its memory
        for size in reversed(sizes):
            graph = Graph(decoder, attention, last_tokens, page_table, logits[:size])
            pool = graph.capture(pool)
            self._graphs.insert(0, graph)

    def run(self, host: HostBatch, repeats: Repeats | None = None) -> "Computed":
        """The batch computed. Its logits are overwritten by a later step's."""
        plan = self._attention.plan(host)
        scores = len(host.scored)
        if repeats is None and not scores and (graph := self._graph(len(host.tokens))):
            replayed = graph.replay(host, plan)
            if replayed is not None:
                self.replayed += 1
                return Computed(replayed, replayed[:0])
        batch = bring(host, self._last_tokens, self._page_table)
        attend = plan.bind(batch, repeats)
        hidden = self._decoder.hidden(batch.tokens, batch.positions, attend, batch.wanted)
        sampled, scored = torch.split(hidden, [len(hidden) - scores, scores])
        return Computed(self._decoder.logits(sampled), scored)

    def _graph(self, num_tokens: int) -> "Graph | None":
        index = bisect_left(self._graphs, num_tokens, key=lambda graph: graph.num_tokens)
        return self._graphs[index] if index < len(self._graphs) else None


class Graph:
    """The forward pass over up to `num_tokens` tokens, always in the same memory."""

    def __init__(
        self,
        decoder: Decoder,
        attention: Attention,
        last_tokens: Tensor,
        page_table: Tensor,
        logits: Tensor,
    ) -> None:
        """`logits` [num_tokens, vocab]: where the results go; all graphs may have the same."""
        self.num_tokens = num_tokens = len(logits)
        self._decoder = decoder
        self._attention = attention
        self._last_tokens = last_tokens
        self._page_table = page_table
        shapes = attention.fixed_shapes(num_tokens)
        assert shapes is not None, "this attention backend has no fixed shapes"
        self._inputs = FixedInputs(
            {name: (num_tokens,) for name in INPUTS} | dict(shapes), page_table.device
        )
        self._replay: Callable[[], object] = self._run
        self._logits = logits

    def capture(self, pool: Any) -> Any:
        """Capture the pass, with memory from `pool` (None: a new one). Returns its pool."""
        if self._page_table.device.type == "cpu":
            return None
        self._inputs.tensors["write_slots"].fill_(-1)  # writes nothing, reads no pages
        self._inputs.tensors.get("lookup", torch.empty(0)).fill_(-1)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._run()  # compiles kernels, and lets libraries take their workspaces
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._run()
        self._replay = graph.replay
        return graph.pool()

    def replay(self, host: HostBatch, plan: StepPlan) -> Tensor | None:
        """The batch's logits, valid until the next replay; None if its plan does not fit."""
        arrays = plan.fixed(self.num_tokens)
        if arrays is None:
            return None
        padded = {name: self._padded(name, getattr(host, name)) for name in INPUTS}
        self._inputs.fill(padded | dict(arrays))
        self._replay()
        found: Tensor = self._logits[: len(host.sampled)]
        return found

    def _padded(self, name: str, array: np.ndarray) -> np.ndarray:
        more = self.num_tokens - len(array)
        return np.pad(array, (0, more), constant_values=PADDING.get(name, 0))

    def _run(self) -> None:
        tensors = self._inputs.tensors
        inputs = {name: tensors[name] for name in INPUTS}
        inputs["tokens"] = with_last(tensors, self._last_tokens)
        batch = Batch(**inputs, page_table=self._page_table)
        plan = {name: t for name, t in tensors.items() if name not in INPUTS}
        attend = self._attention.bind_fixed(batch, plan)
        self._logits.copy_(self._decoder(batch.tokens, batch.positions, attend, batch.wanted))
