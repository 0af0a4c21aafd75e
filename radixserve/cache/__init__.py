"""The prefix cache: a page pool, a radix tree of token spans over its pages, and leases on both.

Standard library and sortedcontainers only; knows nothing of requests, text or tensors.
"""

from radixserve.cache.eviction import POLICIES
from radixserve.cache.laws import LawBroken, check
from radixserve.cache.pages import PagePool
from radixserve.cache.prefix_cache import Lease, PrefixCache
from radixserve.cache.radix import Node, RadixTree

__all__ = [
    "POLICIES",
    "LawBroken",
    "Lease",
    "Node",
    "PagePool",
    "PrefixCache",
    "RadixTree",
    "check",
]
