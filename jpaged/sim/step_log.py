"""What each step did and how long it took, as columns of integers."""

from jpaged.sim.work import StepWork

# A step begins at start_ns, takes the host host_ns and then the device device_ns.
LOG_COLUMNS = ("step", "start_ns", "device_ns", "host_ns", *StepWork._fields)


class StepLog:
    """Steps as they come; columns when they are asked for."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, step: int, start_ns: int, device_ns: int, host_ns: int, work: StepWork) -> None:
        """Keep a step."""
        self._rows.append((step, start_ns, device_ns, host_ns, *work))

    def columns(self) -> dict[str, list[int]]:
        """LOG_COLUMNS, a number for each step."""
        if not self._rows:
            return {name: [] for name in LOG_COLUMNS}
        return {name: list(column) for name, column in zip(LOG_COLUMNS, zip(*self._rows, strict=True), strict=True)}
