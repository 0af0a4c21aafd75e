"""The prompts that fill an index: trunks with fan-out and chats of turns, or one deep chain.

A group is what one application leaves behind, in tokens (298 pages of 16, 48 leaves):

    trunk 1,024 --- branch 976 --- opening 16 --- fork 32     8 openings a branch, 3 forks each
                \\-- branch 976 --- ...

so a prefix of trunk and branch is 2,000 tokens long, and a cached token in 99 is a leaf's. Tokens
are drawn from a generator seeded by group and part: all indexes see the same ones, and none keeps
them outside of itself.
"""

import random
from array import array
from collections.abc import Iterator
from typing import TypeAlias

VOCABULARY = range(1 << 17)
TRUNK, BRANCH, OPENING, FORK = 1024, 976, 16, 32
BRANCHES, CHATS, FORKS = 2, 8, 3
PREFIX = TRUNK + BRANCH
PATH = PREFIX + OPENING + FORK
GROUP_LEAVES = BRANCHES * CHATS * FORKS
GROUP_TOKENS = TRUNK + BRANCHES * (BRANCH + CHATS * (OPENING + FORKS * FORK))
OWN = 50  # tokens of a prompt behind its cached prefix

Ids: TypeAlias = "array[int]"


def draw(seed: int, count: int) -> Ids:
    """`count` token ids; the same for the same seed."""
    return array("i", random.Random(seed).choices(VOCABULARY, k=count))


def prefix(group: int, branch: int) -> Ids:
    """The 2,000 tokens that the chats of a branch share."""
    return draw(group << 16, TRUNK) + draw((group << 16) + branch + 1, BRANCH)


def paths(group: int) -> Iterator[Ids]:
    """The prompts of a group, one for each of its leaves, each of 2,048 tokens."""
    for branch in range(BRANCHES):
        shared = prefix(group, branch)
        for chat in range(CHATS):
            seed = (group << 16) + (branch + 1 << 8) + (chat << 4)
            opening = shared + draw(seed, OPENING)
            for fork in range(FORKS):
                yield opening + draw(seed + fork + 1, FORK)


def chain(depth: int, page_size: int) -> Iterator[Ids]:
    """Prompts that fork at every page of one long prompt of `depth` pages, the long one first.

    Deepest fork first, so that building it is linear: what is above is still one node.
    """
    trunk = draw(-1, depth * page_size)
    yield trunk
    for at in range(depth - 1, 0, -1):
        yield trunk[: at * page_size] + draw(-1 - at, page_size)
