"""The prefix cache: a page pool, a radix tree of token spans over its pages, and leases on both.

Standard library and sortedcontainers only; knows nothing of requests, text or tensors.
"""

from radixserve.cache.eviction import POLICIES
from radixserve.cache.laws import LawBroken, check
from radixserve.cache.lease import Lease, Terms
from radixserve.cache.ledger import Departure, Ledger
from radixserve.cache.node import Node
from radixserve.cache.pages import PagePool
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.radix import RadixTree

__all__ = [
    "POLICIES",
    "Departure",
    "LawBroken",
    "Lease",
    "Ledger",
    "Node",
    "PagePool",
    "PrefixCache",
    "RadixTree",
    "Terms",
    "check",
]
