"""The ten-page example of ARCHITECTURE.md, step by step."""

from radixserve.cache import Lease, PrefixCache, check
from tests.cache.machine import ids
from tests.cache.test_radix import make


def start(cache: PrefixCache, text: str) -> Lease:
    data = ids([ord(letter) for letter in text])
    lease = cache.acquire("", data)
    assert lease is not None and cache.append(lease, len(text))
    cache.commit(lease, data, len(text))
    check(cache)
    return lease


def state(cache: PrefixCache) -> dict[str, tuple[list[int], int]]:
    """Span -> (pages, holds)."""
    spans = {
        "".join(chr(n.tokens[i]) for i in range(0, len(n.tokens), 4)): (list(n.pages), n.holds)
        for n in cache.tree.nodes()
    }
    check(cache)
    return spans


def test_ten_pages() -> None:
    cache = make(num_pages=10)

    a = start(cache, "abcdefg")
    assert state(cache) == {"": ([], 2), "abcdef": ([0, 1, 2], 1)}
    assert (list(a.pages), list(a.own)) == ([0, 1, 2, 3], [3])

    b = start(cache, "abcdxyz")
    assert state(cache) == {"": ([], 2), "abcd": ([0, 1], 2), "ef": ([2], 1), "xy": ([4], 1)}
    assert list(b.pages) == [0, 1, 4, 5]

    cache.release(a)
    cache.release(b)
    assert [list(node.pages) for node in cache.tree.accounts.common.values()] == [[2], [4]]

    c, d = start(cache, "pqrst"), start(cache, "pqrst")
    assert state(cache)["pqrs"] == ([5, 3], 2)
    assert (list(c.pages), list(d.pages), len(cache.pool)) == ([5, 3, 6], [5, 3, 7], 2)

    wide = ids([ord("u")] * 13)
    assert cache.acquire("", wide) is None and cache.evicted_pages == 0

    e = start(cache, "uvwxyzu")
    assert state(cache) == {
        "": ([], 4),
        "abcd": ([0, 1], 0),
        "pqrs": ([5, 3], 2),
        "uvwxyz": ([2, 4, 8], 1),
    }
    assert (list(e.pages), len(cache.pool)) == ([2, 4, 8, 9], 0)
