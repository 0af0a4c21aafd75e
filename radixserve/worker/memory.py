"""How much memory is free, what a step needs of it, and how many K/V pages fit. Allocates nothing.

The runner asks for the free memory before it loads the weights, and for the pool's size after.
Weights and pool together get the share `--mem-fraction-static` of what was free, but never more
than leaves `working_bytes` for the largest step and for CUDA graphs.
"""

from pathlib import Path

import torch
from msgspec import Struct

from radixserve.models.spec import ModelSpec
from radixserve.worker import cgroup

LOGITS_COPIES = 6  # float32: logits twice, log probabilities, scaled, sorted, token counts
GPU_FIXED_BYTES = 2 << 30


class PoolSize(Struct, frozen=True, kw_only=True):
    """The chosen number of K/V pages and what it was chosen from. Memory is in bytes."""

    num_pages: int
    page_size: int
    page_bytes: int  # over all layers
    free_bytes: int  # before the weights were loaded
    weight_bytes: int
    working_bytes: int  # kept free for steps
    fraction: float  # of the free memory for weights and pool; 0: `max_total_tokens` was given

    def __str__(self) -> str:
        gib = 1 << 30
        why = "as asked for"
        if self.fraction and self.free_bytes * self.fraction > self.free_bytes - self.working_bytes:
            why = (
                f"{self.free_bytes / gib:.1f} GiB free less {self.working_bytes / gib:.2f} GiB for"
                f" a step and {self.weight_bytes / gib:.2f} GiB of weights"
            )
        elif self.fraction:
            why = (
                f"{self.fraction:.2f} of {self.free_bytes / gib:.1f} GiB free"
                f" less {self.weight_bytes / gib:.2f} GiB of weights"
            )
        return (
            f"K/V pool of {self.num_pages * self.page_size} tokens"
            f" ({self.num_pages} pages, {self.num_pages * self.page_bytes / gib:.2f} GiB: {why})"
        )


def size_pool(
    *,
    page_size: int,
    page_bytes: int,
    max_total_tokens: int,
    free_bytes: int,
    weight_bytes: int,
    working_bytes: int,
    fraction: float,
) -> PoolSize:
    """Pages for `max_total_tokens` rounded down, or for what the share of the free memory holds.

    The share is cut to what leaves `working_bytes` free.

    Raises ValueError with a sentence for the operator if not even one page fits.
    """
    if max_total_tokens:
        num_pages, fraction = max_total_tokens // page_size, 0.0
        if num_pages < 1:
            raise ValueError(
                f"--max-total-tokens {max_total_tokens} is less than one page of {page_size} tokens"
            )
    else:
        share = min(int(free_bytes * fraction), free_bytes - working_bytes)
        num_pages = (share - weight_bytes) // page_bytes
        if num_pages < 1:
            raise ValueError(
                f"no memory for the K/V pool: {fraction:.2f} of {free_bytes} free bytes (at most"
                f" what leaves {working_bytes} for a step), less {weight_bytes} bytes of weights,"
                f" does not hold a page of {page_bytes} bytes; raise --mem-fraction-static or"
                " give --max-total-tokens"
            )
    return PoolSize(
        num_pages=num_pages,
        page_size=page_size,
        page_bytes=page_bytes,
        free_bytes=free_bytes,
        weight_bytes=weight_bytes,
        working_bytes=working_bytes,
        fraction=fraction,
    )


def working_bytes(
    spec: ModelSpec, *, tokens: int, rows: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Memory of a step of `tokens` tokens that samples for `rows` rows, estimated from above.

    What one layer holds at once (layers reuse each other's memory), the logits with the copies that
    sampling makes of them, and on a GPU a fixed sum for partial results of attention, captured
    graphs (whose own activations are those of a step of few tokens), workspaces of the products,
    and loaded kernels. Scoring prompts needs no more, if at most `rows` rows of their logits live
    at once: fewer copies are made of such.
    """
    heads = 2 * spec.num_heads + 2 * spec.num_kv_heads  # queries, results, keys and values
    layer = 4 * spec.hidden_size + heads * spec.head_dim + 3 * spec.intermediate_size
    logits = rows * spec.vocab_size * (dtype.itemsize + LOGITS_COPIES * torch.float32.itemsize)
    fixed = GPU_FIXED_BYTES if device.type == "cuda" else 0
    return tokens * layer * dtype.itemsize + logits + fixed


def free_memory(device: torch.device, root: Path = cgroup.ROOT) -> int:
    """Bytes that this process may still allocate on `device`.

    On a CPU: what the kernel calls available, or what a control group leaves if that is less.
    Raises ValueError where the system does not say.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = root / "proc/meminfo"
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    fields = dict(line.split(":", 1) for line in lines)
    if "MemAvailable" not in fields:
        raise ValueError(f"{meminfo} does not say how much memory is available")
    available = int(fields["MemAvailable"].split()[0]) * 1024
    left = cgroup.memory_left(root)
    return available if left is None else min(available, left)
