"""What a step costs.

Integer nanoseconds, rounded once; the device's time and the host's between steps are told apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from jpaged.sim.work import StepWork


class CostModel(Protocol):
    """Says how long steps take. An executor asks once for each step: `step_ns`, then `host_ns`."""

    @property
    def name(self) -> str:
        """Which profile this is, for the records of a run."""
        ...

    def step_ns(self, work: StepWork) -> int:
        """Nanoseconds that the device is at work on the step."""
        ...

    def host_ns(self, work: StepWork) -> int:
        """Nanoseconds that the host takes between the step before and this one, with the device idle."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCostModel:
    """A sum of coefficients (nanoseconds, floats) times the facts of a step.

    Bound by memory: `weights_ns`, `context_ns`, `chunk_context_ns`, `copy_token_ns` (of a copied page). By compute:
    `token_ns`, `pair_ns`. By launches: `launch_ns`, `sequence_ns` (of a decode row), `prefill_row_ns`, `sample_ns` (a
    sample's). By the host: `host_...`. The first `free_rows` decode rows, and then the first `free_tokens` of the
    tokens left, cost no compute: reading the weights hides it. A swapped page costs its tokens' bytes on the link, and
    `_page_ns` for its separate copies: one per layer, K and V. `page_sizes` are those that the model holds for (None:
    any), with the factor on what attention reads in each. `unknown` are the facts (fields of StepWork) that a measured
    model has never seen: a step that has any is refused.
    """

    name: str
    weights_ns: float = 0.0
    launch_ns: float = 0.0
    sequence_ns: float = 0.0
    sample_ns: float = 0.0
    context_ns: float = 0.0
    token_ns: float = 0.0
    free_rows: float = 0.0
    free_tokens: float = 0.0
    pair_ns: float = 0.0
    chunk_context_ns: float = 0.0
    prefill_row_ns: float = 0.0
    copy_token_ns: float = 0.0
    swap_out_token_ns: float = 0.0
    swap_out_page_ns: float = 0.0
    swap_in_token_ns: float = 0.0
    swap_in_page_ns: float = 0.0
    host_step_ns: float = 0.0
    host_sequence_ns: float = 0.0
    host_prefill_row_ns: float = 0.0
    host_prefill_token_ns: float = 0.0
    page_sizes: Mapping[int, float] | None = None
    unknown: tuple[str, ...] = ()

    def step_ns(self, work: StepWork) -> int:
        """Nanoseconds of the device. Raises ValueError if the model says nothing of such a step."""
        page_size, rows, context, prefill_rows, tokens, pairs, chunk, samples, copies, out, into = work
        factor = 1.0 if self.page_sizes is None else self._page_factor(page_size)
        if self.unknown:
            self._refuse_unknown(work)
        time = self.weights_ns + self.launch_ns + rows * self.sequence_ns + factor * context * self.context_ns
        bound = rows - self.free_rows
        bound = (bound if bound > 0 else 0) + tokens - self.free_tokens
        if bound > 0:
            time += bound * self.token_ns
        if prefill_rows:
            time += prefill_rows * self.prefill_row_ns + pairs * self.pair_ns + factor * chunk * self.chunk_context_ns
        if copies or out or into:
            out_ns = page_size * self.swap_out_token_ns + self.swap_out_page_ns
            in_ns = page_size * self.swap_in_token_ns + self.swap_in_page_ns
            time += copies * page_size * self.copy_token_ns + out * out_ns + into * in_ns
        return round(time + samples * self.sample_ns)

    def host_ns(self, work: StepWork) -> int:
        """Nanoseconds of the host between steps."""
        _, rows, _, prefill_rows, tokens, _, _, _, _, _, _ = work
        return round(
            self.host_step_ns
            + rows * self.host_sequence_ns
            + prefill_rows * self.host_prefill_row_ns
            + tokens * self.host_prefill_token_ns
        )

    def _page_factor(self, page_size: int) -> float:
        sizes = self.page_sizes
        assert sizes is not None
        if page_size not in sizes:
            known = ", ".join(map(str, sizes))
            raise ValueError(f"page_size={page_size}: profile {self.name} holds for pages of {known} tokens; use one")
        return sizes[page_size]

    def _refuse_unknown(self, work: StepWork) -> None:
        for field in self.unknown:
            value = getattr(work, field)
            if value:
                raise ValueError(
                    f"{field}={value}: profile {self.name} was fitted to steps that had none; fit it to a log that has"
                )


class TableCostModel:
    """The times of a log, replayed: the k-th step costs what the k-th row says, whatever it does.

    `expected` are columns of facts (fields of StepWork) of the same log: a step that differs from its row is refused.
    """

    def __init__(
        self,
        name: str,
        device_ns: Sequence[int],
        host_ns: Sequence[int],
        expected: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.name = name
        self._device_ns, self._host_ns = device_ns, host_ns
        self._expected = dict(expected or {})
        self._step = 0

    def step_ns(self, work: StepWork) -> int:
        """Nanoseconds of the device in the next row. Raises ValueError past the last one, or if `work` is another."""
        step = self._step
        if step >= len(self._device_ns):
            raise ValueError(f"step {step}: profile {self.name} has {len(self._device_ns)} steps; log a longer run")
        for field, column in self._expected.items():
            if getattr(work, field) != column[step]:
                raise ValueError(
                    f"step {step}: {field}={getattr(work, field)}, but {self.name} has {column[step]} there; "
                    "replay the run that was logged, with its config"
                )
        self._step += 1
        return self._device_ns[step]

    def host_ns(self, work: StepWork) -> int:
        """Nanoseconds of the host in the row that `step_ns` gave last."""
        assert self._step, "host_ns belongs to the step that step_ns gave"
        return self._host_ns[self._step - 1]


def scaled(
    cost_model: CostModel,
    *,
    bandwidth: float = 1.0,
    flops: float = 1.0,
    launch_time: float = 1.0,
    host_time: float = 1.0,
) -> LinearCostModel:
    """A cost model with other hardware: rates times `bandwidth` and `flops`, times times `launch_time`, `host_time`.

    Raises ValueError for a model that has no such parts (a table), or a factor that is not positive.
    """
    factors = {"bandwidth": bandwidth, "flops": flops, "launch_time": launch_time, "host_time": host_time}
    for field, value in factors.items():
        if not value > 0:
            raise ValueError(f"{field}={value}: give a positive factor, such as 1.15")
    if not isinstance(cost_model, LinearCostModel):
        raise ValueError(f"profile {cost_model.name} has no parts to scale; use ideal, paper-2023 or measured:FILE")
    old, changed = cost_model, {field: value for field, value in factors.items() if value != 1.0}
    suffix = ",".join(f"{field}={value:g}" for field, value in changed.items())
    return replace(
        old,
        name=f"{old.name}[{suffix}]" if suffix else old.name,
        weights_ns=old.weights_ns / bandwidth,
        context_ns=old.context_ns / bandwidth,
        chunk_context_ns=old.chunk_context_ns / bandwidth,
        copy_token_ns=old.copy_token_ns / bandwidth,
        token_ns=old.token_ns / flops,
        pair_ns=old.pair_ns / flops,
        # More compute hides behind the same bytes, less behind bytes that come sooner.
        free_rows=old.free_rows * flops / bandwidth,
        free_tokens=old.free_tokens * flops,
        launch_ns=old.launch_ns * launch_time,
        sequence_ns=old.sequence_ns * launch_time,
        sample_ns=old.sample_ns * launch_time,
        prefill_row_ns=old.prefill_row_ns * launch_time,
        host_step_ns=old.host_step_ns * host_time,
        host_sequence_ns=old.host_sequence_ns * host_time,
        host_prefill_row_ns=old.host_prefill_row_ns * host_time,
        host_prefill_token_ns=old.host_prefill_token_ns * host_time,
    )
