"""A plan becomes the padded arrays of one step: one int32 and one float32 array, each a fresh buffer.

Every page id in them is one of the pool's.
"""

from collections import abc
from itertools import chain

import numpy as np

from jpaged.core.plan import AdmittedSequence, PageGrant, SchedulerOutput
from jpaged.runtime.buckets import Buckets
from jpaged.runtime.sampling.inputs import SAMPLE_FLOATS, split_seed
from jpaged.runtime.step_shape import StepShape, unpack

NO_TARGET = -1  # a packed token whose successor's log probability is not asked for


class InputBatch:
    """The host's copy of what each of `num_lanes` lanes holds: known ids, block table, sampling parameters.

    `num_pages` counts the null page.
    """

    def __init__(self, num_lanes: int, max_model_len: int, page_size: int, num_pages: int) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        self.num_lanes = num_lanes
        self.token_ids = np.zeros((num_lanes, max_model_len), np.int32)
        self.num_known = np.zeros(num_lanes, np.int32)
        self.block_tables = np.zeros((num_lanes, -(-max_model_len // page_size)), np.int32)
        self.floats = np.zeros((len(SAMPLE_FLOATS), num_lanes), np.float32)
        self.ints: dict[str, np.ndarray] = {
            name: np.zeros(num_lanes, np.int32)
            for name in ("top_k", "seed_hi", "seed_lo", "sample_index", "prompt_len", "min_tokens", "num_logprobs")
        }
        self.num_prompt_logprobs = np.full(num_lanes, -1, np.int32)

    @property
    def table_width(self) -> int:
        """Columns of a block table."""
        return self.block_tables.shape[1]

    def admit(self, sequence: AdmittedSequence) -> None:
        """Give a lane to a sequence; nothing of the lane's last owner is left."""
        lane, params = sequence.lane, sequence.params
        count = len(sequence.token_ids)
        self.token_ids[lane, :count] = sequence.token_ids
        self.num_known[lane] = count
        self.block_tables[lane] = 0
        self.floats[:, lane] = [getattr(params, name) for name in SAMPLE_FLOATS]
        if params.greedy:
            self.floats[0, lane] = 0.0
        seed_hi, seed_lo = split_seed(sequence.seed)
        values = {
            "top_k": min(max(params.top_k, 0), 2**31 - 1),
            "seed_hi": seed_hi,
            "seed_lo": seed_lo,
            "sample_index": sequence.index,
            "prompt_len": sequence.prompt_len,
            "min_tokens": min(params.min_tokens, 2**31 - 1),
            "num_logprobs": -1 if params.num_logprobs is None else params.num_logprobs,
        }
        for name, value in values.items():
            self.ints[name][lane] = value
        self.num_prompt_logprobs[lane] = -1 if params.prompt_logprobs is None else params.prompt_logprobs

    def grant(self, grant: PageGrant) -> None:
        """Write new pages into a block table."""
        # JAX clamps an index that is out of range, so a wrong page would be read in silence.
        assert all(0 < page < self.num_pages for page in grant.pages), "a page id is not one of the pool's"
        self.block_tables[grant.lane, grant.column : grant.column + len(grant.pages)] = grant.pages

    def fit(self, plan: SchedulerOutput, buckets: Buckets) -> StepShape:
        """The smallest shape that holds the plan."""
        decode = plan.num_tokens == len(plan.rows)
        if decode:
            # A prompt's logprobs are made by the ragged programs alone; decode programs stay small.
            decode = bool((self.num_prompt_logprobs[[row.lane for row in plan.rows]] < 0).all())
        return buckets.fit(
            num_rows=len(plan.rows), num_tokens=plan.num_tokens, num_samples=len(plan.samples), decode=decode
        )

    def pack(self, plan: SchedulerOutput, shape: StepShape) -> tuple[np.ndarray, np.ndarray]:
        """The plan's int32 and float32 arrays in the layout of `shape`."""
        ints = np.zeros(shape.num_ints, np.int32)
        out = unpack(ints, shape.int_shapes)
        rows = _table(plan.rows, 3)
        lanes, starts, counts = rows[:, 0], rows[:, 1], rows[:, 2]
        self._pack_tokens(out, lanes, starts, counts)
        num_rows = len(rows)
        out["block_tables"][:num_rows] = self.block_tables[lanes]
        out["context_lens"][:num_rows] = starts + counts
        ends = np.cumsum(counts)
        if not shape.decode:
            out["query_starts"][1 : num_rows + 1] = ends
            out["query_starts"][num_rows + 1 :] = ends[-1]
        return ints, self._pack_samples(out, plan, starts + counts, ends)

    def _pack_tokens(
        self, out: dict[str, np.ndarray], lanes: np.ndarray, starts: np.ndarray, counts: np.ndarray
    ) -> None:
        total = int(counts.sum())
        token_lanes = np.repeat(lanes, counts)
        firsts = np.cumsum(counts) - counts
        positions = np.arange(total, dtype=np.int32) - np.repeat(firsts - starts, counts)
        pages = self.block_tables[token_lanes, positions // self.page_size]
        assert pages.all(), "a token is to be written to the null page"
        known = positions < self.num_known[token_lanes]
        out["token_refs"][:total] = np.where(known, self.token_ids[token_lanes, positions], -1 - token_lanes)
        out["positions"][:total] = positions
        out["slots"][:total] = pages * self.page_size + positions % self.page_size
        # Padding writes go to distinct slots past the pool, where every implementation drops them.
        padding = len(out["slots"]) - total
        out["slots"][total:] = self.num_pages * self.page_size + np.arange(padding)
        out["token_lanes"][:total] = token_lanes
        out["token_lanes"][total:] = self.num_lanes
        if "prompt_targets" in out:
            out["prompt_targets"][:] = NO_TARGET
            wanted = self.num_prompt_logprobs[token_lanes] >= 0
            wanted &= positions + 1 < self.ints["prompt_len"][token_lanes]
            successors = self.token_ids[token_lanes, np.minimum(positions + 1, self.token_ids.shape[1] - 1)]
            out["prompt_targets"][:total] = np.where(wanted, successors, NO_TARGET)

    def _pack_samples(
        self, out: dict[str, np.ndarray], plan: SchedulerOutput, row_ends: np.ndarray, packed_ends: np.ndarray
    ) -> np.ndarray:
        floats = np.zeros((len(SAMPLE_FLOATS), len(out["lanes"])), np.float32)
        out["lanes"][:] = self.num_lanes
        out["num_logprobs"][:] = -1
        if plan.samples:
            samples = _table(plan.samples, 2)
            rows, lanes = samples[:, 0], samples[:, 1]
            n = len(samples)
            out["sample_rows"][:n] = packed_ends[rows] - 1
            out["lanes"][:n] = lanes
            for name, values in self.ints.items():
                out[name][:n] = values[lanes]
            out["num_tokens"][:n] = row_ends[rows]
            out["output_position"][:n] = row_ends[rows] - self.ints["prompt_len"][lanes]
            floats[:, :n] = self.floats[:, lanes]
        return floats.reshape(-1)


def _table(rows: abc.Sequence[tuple[int, ...]], width: int) -> np.ndarray:
    """The rows as one int32 array; np.array takes three times as long to look into tuples."""
    return np.fromiter(chain.from_iterable(rows), np.int32, width * len(rows)).reshape(-1, width)
