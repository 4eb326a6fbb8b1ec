"""Who goes first, and who gives way.

Lives here: the order of admission and of preemption.
Promises: a total order, so that the first in it always advances.
Must not know: pages, budgets.
"""

from jpaged.core.sequence import SequenceGroup


def fcfs(group: SequenceGroup) -> int:
    """First come, first served: the rank of a group. The lowest is admitted first, the highest is preempted first."""
    return group.order
