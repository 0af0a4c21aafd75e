"""The pool of free pages: numbers only, the K/V tensors behind them live in the worker."""

from array import array
from collections.abc import Iterable


def no_pages() -> "array[int]":
    return array("i")


class PagePool:
    """Owns the pages that neither the tree nor a lease owns.

    Last in, first out, and a run that comes back leaves in the same order: neighbouring tokens tend
    to stand in neighbouring pages, which the worker can read without gathering.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = array("i", range(num_pages - 1, -1, -1))

    def __len__(self) -> int:
        """Number of free pages."""
        return len(self._free)

    @property
    def free(self) -> "array[int]":
        """The free page ids; not to be changed."""
        return self._free

    def take(self, count: int) -> "array[int]":
        """`count` free pages, which the caller now owns."""
        assert 0 <= count <= len(self._free), f"{count} pages wanted, {len(self._free)} are free"
        if count == 0:
            return no_pages()
        taken = self._free[: -count - 1 : -1]
        del self._free[-count:]
        return taken

    def give(self, pages: Iterable[int]) -> None:
        """Take back pages that the caller owned."""
        back = array("i", pages)
        back.reverse()
        self._free += back
        assert len(self._free) <= self.num_pages, "a page came back twice"
