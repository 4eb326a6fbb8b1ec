"""Which index of the executor's batch each sequence has."""

from jpaged.core.requests.sequence import Sequence, SequenceStatus


class Lanes:
    """`count` lanes, of which each is free or one sequence's."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = list(range(count - 1, -1, -1))

    @property
    def num_used(self) -> int:
        """Lanes that a sequence has."""
        return self.count - len(self.free)

    def assign(self, sequence: Sequence) -> None:
        """Give a sequence a free lane. The caller has checked that there is one."""
        sequence.lane = self.free.pop()
        sequence.status = SequenceStatus.RUNNING

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's lane back, if it has one."""
        if sequence.lane is not None:
            self.free.append(sequence.lane)
            sequence.lane = None
