"""Where the tokens of one sequence are: position -> page, slot.

Lives here: BlockTable.
Promises: page i holds positions [i * page_size, (i + 1) * page_size).
Must not know: who else holds a page.
"""


class BlockTable:
    """The pages of one sequence, in the order of its positions."""

    __slots__ = ("page_size", "pages")

    def __init__(self, page_size: int, pages: list[int] | None = None) -> None:
        self.page_size = page_size
        self.pages: list[int] = [] if pages is None else pages

    def __len__(self) -> int:
        return len(self.pages)

    @property
    def capacity(self) -> int:
        """Tokens that the pages held so far have room for."""
        return len(self.pages) * self.page_size

    def slot(self, position: int) -> int:
        """The slot of the token at `position`; IndexError if no page is held for it."""
        return self.pages[position // self.page_size] * self.page_size + position % self.page_size


def pages_for(num_tokens: int, page_size: int) -> int:
    """How many pages `num_tokens` tokens fill, the last one perhaps in part."""
    return -(-num_tokens // page_size)
