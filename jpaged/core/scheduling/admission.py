"""Which requests an engine can serve at all.

What passes can be run to its end by an idle engine; what does not is refused with the remedy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jpaged.core.cache.page_pool import pages_for
from jpaged.core.errors import RequestRefused
from jpaged.core.requests.request import Request

MostTogether = Callable[[int, int, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What a model and a pool can take: ids below `vocab_size`, `num_pages` pages of `page_size` tokens.

    `most_together`: where pages are reserved, how many sequences of a prompt and a greatest length, up to that many, an
    empty pool holds.
    """

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    num_pages: int
    page_size: int
    max_num_waiting: int | None = None
    most_together: "MostTogether | None" = None


class Admission(NamedTuple):
    """How a request can be run: its sequences end at `max_len` tokens at the latest, `width` of them run at once."""

    max_len: int
    width: int


def check_request(request: Request, limits: RequestLimits, num_pinned: int = 0) -> Admission:
    """How the request can be run: all its sequences at once if the pool can hold them, else as many as it can.

    Raises RequestRefused if the prompt is empty, too long, has ids that the model lacks, or if a sequence of it, or the
    beams of its search together, can never be in the pool, beside `num_pinned` pages that are never given back.
    """
    _check_ids(request, limits)
    if request.cache_salt is not None and not isinstance(request.cache_salt, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RequestRefused(f"cache_salt={request.cache_salt!r}: must be a string")
    prompt_len, params = len(request.prompt_token_ids), request.params
    if prompt_len >= limits.max_model_len:
        raise RequestRefused(
            f"the prompt has {prompt_len} tokens: with max_model_len={limits.max_model_len} at most "
            f"{limits.max_model_len - 1} leave room for one output token; shorten it or raise max_model_len"
        )
    max_len = limits.max_model_len
    if params.max_tokens is not None:
        max_len = min(max_len, prompt_len + params.max_tokens)
    width = request.width
    what = "beam_width" if request.beam is not None else "n" if params.best_of is None else "best_of"
    if width > limits.max_num_seqs:
        limit = limits.max_num_seqs
        raise RequestRefused(f"{what}={width}: at most max_num_seqs={limit} sequences run at once; lower {what}")
    if request.beam is not None:
        _check_beam(request, limits)
    if limits.most_together is not None:
        return Admission(max_len, _reserved_width(limits.most_together, limits, prompt_len, max_len, request, what))
    room = limits.num_pages - num_pinned
    fitting = width
    while (need := pages_needed(prompt_len, max_len, fitting, limits.page_size)) > room:
        if fitting == 1 or request.beam is not None:
            pinned = f", {num_pinned} of them pinned" if num_pinned else ""
            raise RequestRefused(
                f"prompt of {prompt_len} tokens, {what}={fitting}, up to {max_len} tokens each: needs {need} pages, "
                f"the pool has {limits.num_pages}{pinned}; lower max_tokens or {what}, or raise num_pages"
            )
        fitting -= 1
    return Admission(max_len, fitting)


def _reserved_width(
    most_together: MostTogether, limits: RequestLimits, prompt_len: int, max_len: int, request: Request, what: str
) -> int:
    fitting = most_together(prompt_len, max_len, request.width)
    if fitting == 0 or (fitting < request.width and request.beam is not None):
        raise RequestRefused(
            f"prompt of {prompt_len} tokens, {what}={request.width}, up to {max_len} tokens each: the pool of "
            f"{limits.num_pages} pages has room for {fitting} reservations of that size; lower max_tokens or {what}, "
            "or raise num_pages"
        )
    return fitting


def pages_needed(prompt_len: int, max_len: int, width: int, page_size: int) -> int:
    """The most pages that `width` sequences of one prompt, of up to `max_len` tokens each, can ever hold together."""
    # The newest token's KV is written by the next step, so the last one never is.
    each = pages_for(max_len - 1, page_size)
    shared = prompt_len // page_size
    return shared + width * (each - shared)


def _check_beam(request: Request, limits: RequestLimits) -> None:
    stops = 0 if request.params.ignore_eos else len(request.eos_token_ids)
    if request.width + stops > limits.vocab_size:
        raise RequestRefused(
            f"beam_width={request.width}: a vocabulary of {limits.vocab_size} ids has too few to go on with; lower it"
        )


def _check_ids(request: Request, limits: RequestLimits) -> None:
    if not request.prompt_token_ids:
        raise RequestRefused("the prompt is empty: give at least one token")
    for name, ids in (
        ("prompt_token_ids", request.prompt_token_ids),
        ("stop_token_ids", request.params.stop_token_ids or ()),
        ("logit_bias", request.params.logit_bias or ()),
    ):
        # Long prompts are the rule, so the good ones are told by a few passes that Python makes in C.
        if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < limits.vocab_size):
            continue
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise RequestRefused(f"{name} has {token!r}: token ids are integers")
            if not 0 <= token < limits.vocab_size:
                raise RequestRefused(f"{name} has the id {token}: the model's ids are 0 to {limits.vocab_size - 1}")
