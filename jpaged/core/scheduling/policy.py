"""Who goes first, who gives way: the rules that a user may replace.

The order is total. Whatever a policy chooses, the first group in the order is not preempted while others run, so it
always advances; a choice outside of what was offered is refused.
"""

from collections import abc
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from jpaged.core.cache.prefix_cache import EvictionPolicy
from jpaged.core.requests.sequence import SequenceGroup

Rank = tuple[int, int]


class PrefixLookup(Protocol):
    """What an admission policy may ask of the cache."""

    def num_cached_tokens(self, group: SequenceGroup) -> int:
        """How many of a waiting group's first tokens are in cached pages."""
        ...


class AdmissionPolicy(Protocol):
    """Chooses which waiting group is next."""

    def __call__(self, waiting: abc.Sequence[SequenceGroup], cache: PrefixLookup) -> int:
        """The index in `waiting` (never empty, in the scheduling order) of the group to admit next."""
        ...


class VictimPolicy(Protocol):
    """Chooses which running group gives its pages back."""

    def __call__(self, candidates: abc.Sequence[SequenceGroup]) -> int:
        """The index in `candidates` (never empty, in the scheduling order) of the group to preempt."""
        ...


def fcfs(group: SequenceGroup) -> Rank:
    """First come, first served: the rank of a group; the lowest runs first."""
    return (0, group.order)


def by_priority(group: SequenceGroup) -> Rank:
    """The lowest priority number first, and among equals first come, first served."""
    return (group.request.priority, group.order)


def in_order(waiting: abc.Sequence[SequenceGroup], cache: PrefixLookup) -> int:
    """The first in the scheduling order."""
    return 0


def longest_prefix(waiting: abc.Sequence[SequenceGroup], cache: PrefixLookup) -> int:
    """The group with the most tokens in the prefix cache, as RadixAttention does; among equals the first."""
    return max(range(len(waiting)), key=lambda i: (cache.num_cached_tokens(waiting[i]), -i))


def last(candidates: abc.Sequence[SequenceGroup]) -> int:
    """The last in the scheduling order: the newest, under fcfs."""
    return len(candidates) - 1


ORDERS: dict[str, Callable[[SequenceGroup], Rank]] = {"fcfs": fcfs, "priority": by_priority}
ADMISSION: dict[str, AdmissionPolicy] = {"in_order": in_order, "longest_prefix": longest_prefix}
VICTIM: dict[str, VictimPolicy] = {"last": last}
EVICTION: dict[str, EvictionPolicy | None] = {"lru": None}


def load_policy(field: str, name: str, known: dict[str, Any]) -> Any:
    """The policy `name`: one of `known`, or a callable at an import path "package.module:attribute".

    Raises ValueError naming the field, the value and the remedy.
    """
    if name in known:
        return known[name]
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"{field}={name!r}: use one of {', '.join(known)} or an import path 'package.module:name'")
    try:
        policy = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{field}={name!r} cannot be imported ({error}); check the path and PYTHONPATH") from error
    if not callable(policy):
        raise ValueError(f"{field}={name!r} is not callable: give a function, or an object with __call__")
    return policy


def choose(field: str, policy: Callable[..., Any], options: abc.Sequence[SequenceGroup], *more: Any) -> int:
    """What a policy chooses among `options`. Raises ValueError if that is none of them."""
    index = policy(options, *more)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(options):
        raise ValueError(f"{field} chose {index!r} among {len(options)} groups: it must return an index of the list")
    return index
