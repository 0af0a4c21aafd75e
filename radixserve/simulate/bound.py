"""The most that any prefix cache can hit on a stream of requests: an infinite one, token by token.

It keeps every prompt whole, and every answer but its last token, whose K/V nobody computes. A hit
is the longest prefix that an earlier request left; the last prompt token, whose logits are wanted,
is never one. Shares no code with the cache that it is a measure for.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from radixserve.messages import INT32_BYTES
from radixserve.simulate.tokens import Call


@dataclass(slots=True)
class Bound:
    """Of a whole stream, in tokens."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    distinct: int = 0  # what the infinite cache holds in the end
    requests: int = 0
    longest: int = 0  # prompt + answer

    @property
    def rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class _Node:
    __slots__ = ("children", "span")

    def __init__(self, span: bytes) -> None:
        self.span = span
        self.children: dict[bytes, _Node] = {}  # by first token


class InfiniteCache:
    """A compact trie. Not split by pages, never shrinks."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, _Node] = {}
        self.tokens = 0  # distinct ones, each with all before it

    def add(self, namespace: Hashable, tokens: bytes) -> int:
        """Keep `tokens` (bytes of int32); how many of the first ones were there."""
        node = self._roots.setdefault(namespace, _Node(b""))
        at = 0
        while at < len(tokens):
            key = tokens[at : at + INT32_BYTES]
            child = node.children.get(key)
            if child is None:
                node.children[key] = _Node(tokens[at:])
                self.tokens += (len(tokens) - at) // INT32_BYTES
                break
            equal = _equal(child.span, tokens, at)
            at += equal
            if equal < len(child.span):
                if at == len(tokens):
                    break
                child = _split(node, child, equal)
            node = child
        return at // INT32_BYTES


def _split(parent: _Node, node: _Node, cut: int) -> _Node:
    """Give the first `cut` bytes of `node` to a new parent of it, and return that."""
    upper = _Node(node.span[:cut])
    parent.children[upper.span[:INT32_BYTES]] = upper
    node.span = node.span[cut:]
    upper.children[node.span[:INT32_BYTES]] = node
    return upper


def _equal(span: bytes, tokens: bytes, at: int) -> int:
    """Bytes, in whole tokens, of which `span` and `tokens` from byte `at` on are equal."""
    if tokens.startswith(span, at):
        return len(span)
    low, high = 0, min(len(span), len(tokens) - at) // INT32_BYTES
    while low < high:  # the first `low` tokens are equal, not all of the first `high + 1` are
        middle = (low + high + 1) // 2
        a, b = low * INT32_BYTES, middle * INT32_BYTES
        if span[a:b] == tokens[at + a : at + b]:
            low = middle
        else:
            high = middle - 1
    return low * INT32_BYTES


def bound(calls: Iterable[Call]) -> Bound:
    """The bound of calls that come one after another."""
    cache, total = InfiniteCache(), Bound()
    for call in calls:
        found = cache.add(call.namespace, call.kept)
        total.prompt_tokens += call.prompt_tokens
        total.cached_tokens += min(found, call.prompt_tokens - 1)
        total.requests += 1
        total.longest = max(total.longest, call.prompt_tokens + call.output_tokens)
    total.distinct = cache.tokens
    return total
