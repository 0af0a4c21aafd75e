"""Eviction policies: each is a function from a node to a sort key; the smallest leaf goes first.

Keys may use what a node remembers of its use (`last_used`, `created`, `hits`), which changes only
while the node is held and so outside the evictable set. Ties go to the least recently used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.cache.node import Node

Policy = Callable[["Node"], int]

SLRU_PROTECTED_HITS = 2


def lru(node: "Node") -> int:
    """Least recently used."""
    return node.last_used


def lfu(node: "Node") -> int:
    """Least frequently hit."""
    return node.hits


def slru(node: "Node") -> int:
    """Segmented LRU: what was hit twice or more stays while anything else can go."""
    return 1 if node.hits >= SLRU_PROTECTED_HITS else 0


def fifo(node: "Node") -> int:
    """Oldest span first, used or not."""
    return node.created


POLICIES: dict[str, Policy] = {"lru": lru, "lfu": lfu, "slru": slru, "fifo": fifo}
