"""How much of a request one step computes: a pure function of numbers."""


def chunk(start: int, to_compute: int, budget: int, page_size: int) -> int:
    """Tokens that a row starting at token `start` computes of `to_compute`, within `budget`.

    A chunk that does not finish ends at a page border, so that its pages can all be shared and
    others' pages can be taken up after it. 0: the budget does not reach the next border.
    """
    if to_compute <= budget:
        return to_compute
    end = (start + budget) // page_size * page_size
    return max(end - start, 0)
