"""How a step's token budget is shared: pure functions of numbers."""


def chunk(start: int, to_compute: int, budget: int, page_size: int) -> int:
    """Tokens that a row starting at token `start` computes of `to_compute`, within `budget`.

    A chunk that does not finish ends at a page border, so that its pages can all be shared and
    others' pages can be taken up after it. 0: the budget does not reach the next border.
    """
    if to_compute <= budget:
        return to_compute
    end = (start + budget) // page_size * page_size
    return max(end - start, 0)


def prefill_budget(step_tokens: int, decodes: int) -> int:
    """What is left for prefill when every decoding request gets its one token."""
    return max(step_tokens - decodes, 0)
