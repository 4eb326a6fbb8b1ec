"""Policies that a user could bring, good, odd and wrong, for the tests to load by import path."""

from collections.abc import Sequence

from jpaged.core.requests.sequence import SequenceGroup
from jpaged.core.scheduling.policy import PrefixLookup


def any_waiting(waiting: Sequence[SequenceGroup], cache: PrefixLookup) -> int:
    """Any of them, without a pattern, but the same for the same queue."""
    return hash(tuple((group.order, cache.num_cached_tokens(group)) for group in waiting)) % len(waiting)


def newest(waiting: Sequence[SequenceGroup], cache: PrefixLookup) -> int:
    """The most unfair choice."""
    return len(waiting) - 1


def any_victim(candidates: Sequence[SequenceGroup]) -> int:
    """Any of them, without a pattern."""
    return hash(tuple((group.order, group.live[0].num_computed) for group in candidates)) % len(candidates)


def first(candidates: Sequence[SequenceGroup]) -> int:
    """The oldest that may be chosen."""
    return 0


def any_page(idle: Sequence[int]) -> int:
    """Any of them, without a pattern."""
    return idle[hash(tuple(idle)) % len(idle)]


def latest_page(idle: Sequence[int]) -> int:
    """The page that was released last."""
    return idle[-1]


def past_the_end(options: Sequence[object], *more: object) -> int:
    """An index that is none, and a page that is no idle one."""
    return len(options) + 1000


def before_the_start(options: Sequence[object], *more: object) -> int:
    return -1


def no_index(options: Sequence[object], *more: object) -> bool:
    return True


def failing(options: Sequence[object], *more: object) -> int:
    raise RuntimeError("a policy of mine is broken")


not_callable = 5
