"""Text without a tokenizer: one letter per id."""

from collections.abc import Sequence

from jpaged.core.requests.request import Request
from jpaged.text.text_stream import TextStream


class Letters:
    """The Text role of core/requests/response.py."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The letters of some ids."""
        return "".join(chr(ord("a") + token) for token in ids)

    def stream(self, request: Request) -> TextStream:
        """The text of a sequence of the request."""
        return TextStream(self, stop=request.params.stop or ())

    def spell(self, token_id: int) -> str:
        """The letter of an id."""
        return self.decode([token_id])
