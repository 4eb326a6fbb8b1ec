"""A small engine for tests: lays sequences in scattered pages and calls a model step by step.

There is one jitted step per shape. Every packed token's logits come back, so a test can compare all positions.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models import ModelConfig, StepInputs, build_model
from pallas_kernels import KVPages, allocate


class PagedDriver:
    """Runs chunks of several sequences through one model and one pool.

    Pages are handed out in an order that no two sequences share a run of. The pool starts full of NaN when
    `poison` is set: whatever reads a slot that was not written shows.
    """

    def __init__(
        self, config: ModelConfig, params: Any, *, max_model_len: int, page_size: int = 4, num_seqs: int = 3,
        dtype: Any = jnp.float32, poison: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        self.config, self.params, self.page_size = config, params, page_size
        self.model = build_model(config, dtype=dtype, max_model_len=max_model_len, **options)
        self.width = -(-max_model_len // page_size)
        total = num_seqs * self.width + 1
        order = np.random.default_rng(0).permutation(np.arange(1, total))
        self.tables = order.reshape(num_seqs, self.width).astype(np.int32)
        self.lengths = [0] * num_seqs
        pool = allocate(config.num_layers, total, page_size, config.num_kv_heads, config.head_dim, dtype)
        self.kv_pages = KVPages(pool.k * jnp.nan, pool.v * jnp.nan) if poison else pool
        # Each test compiles programs of its own, to within a tolerance: LLVM's optimisation would be most of the time.
        self._step = jax.jit(
            lambda p, i, kv: self.model.apply({"params": p}, i, kv),
            donate_argnums=2,
            compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
        )

    def step(self, chunks: dict[int, Sequence[int]], *, pad_tokens: int = 2, pad_rows: int = 1) -> list[np.ndarray]:
        """Logits `[len(ids), V]` of every token of every chunk; a step of single tokens is a pure decode step."""
        decode = all(len(ids) == 1 for ids in chunks.values())
        pad_tokens = pad_rows if decode else pad_tokens
        inputs = self.pack(chunks, decode, pad_tokens, pad_rows)
        logits, self.kv_pages = self._step(self.params, inputs, self.kv_pages)
        assert logits.dtype == jnp.float32
        for seq, ids in chunks.items():
            self.lengths[seq] += len(ids)
        ends = np.cumsum([len(ids) for ids in chunks.values()])
        return np.split(np.asarray(logits), ends)[:-1]

    def pack(self, chunks: dict[int, Sequence[int]], decode: bool, pad_tokens: int, pad_rows: int) -> StepInputs:
        """The arrays of one step; padding as StepInputs describes it."""
        num_slots = self.kv_pages.num_slots
        tokens, positions, slots, tables, lens, starts = [], [], [], [], [], [0]
        for seq, ids in chunks.items():
            at = np.arange(self.lengths[seq], self.lengths[seq] + len(ids))
            tokens += list(ids)
            positions += at.tolist()
            slots += (self.tables[seq][at // self.page_size] * self.page_size + at % self.page_size).tolist()
            tables.append(self.tables[seq])
            lens.append(self.lengths[seq] + len(ids))
            starts.append(starts[-1] + len(ids))
        for i in range(pad_tokens):
            tokens, positions, slots = [*tokens, 0], [*positions, 0], [*slots, num_slots + i]
        for _ in range(pad_rows):
            tables, lens, starts = [*tables, np.zeros(self.width, np.int32)], [*lens, 0], [*starts, starts[-1]]

        def ints(values: Any) -> jax.Array:
            return jnp.asarray(np.asarray(values, np.int32))

        sample = ints(range(len(tokens)))
        return StepInputs(
            ints(tokens),
            ints(positions),
            ints(slots),
            ints(tables),
            ints(lens),
            None if decode else ints(starts),
            sample,
        )

    def run(self, seq: int, ids: Sequence[int], chunks: Sequence[int]) -> np.ndarray:
        """Logits of all of `ids`, computed in steps of the sizes in `chunks` and then one token a step."""
        sizes = [*chunks, *[1] * (len(ids) - sum(chunks))]
        pieces, start = [], 0
        for size in sizes:
            pieces += self.step({seq: ids[start : start + size]})
            start += size
        return np.concatenate(pieces)
