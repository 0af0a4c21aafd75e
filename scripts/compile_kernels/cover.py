"""Combinations of values in which every two values of different dimensions meet at least once.

Greedy, as AETG (Cohen et al., IEEE TSE 23(7), 1997), but without chance: same input, same rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

Choice = tuple[str, Any]  # a dimension and one of its values


def all_pairs(dimensions: Mapping[str, Sequence[Any]]) -> list[frozenset[Choice]]:
    return [
        frozenset([(one, a), (other, b)])
        for one, other in combinations(dimensions, 2)
        for a, b in product(dimensions[one], dimensions[other])
    ]


def pairwise(dimensions: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows with a value of each dimension, in which all pairs occur. Two dimensions or more.

    Each row begins with the first pair that is still missing, and takes of every other dimension
    the value that brings most missing pairs with what the row has; of equals the least used one.
    """
    missing = dict.fromkeys(all_pairs(dimensions))  # a set that keeps its order
    used: Counter[Choice] = Counter()
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name in dimensions:
            if name not in row:
                row[name] = _best(name, dimensions[name], row, missing, used)
        rows.append({name: row[name] for name in dimensions})
        used.update(row.items())
        for two in combinations(row.items(), 2):
            missing.pop(frozenset(two), None)
    return rows


def _best(
    name: str,
    values: Sequence[Any],
    row: Mapping[str, Any],
    missing: Mapping[frozenset[Choice], None],
    used: Counter[Choice],
) -> Any:
    def rank(value: Any) -> tuple[int, int]:
        choice = (name, value)
        brought = sum(frozenset([choice, had]) in missing for had in row.items())
        return -brought, used[choice]

    return min(values, key=rank)
