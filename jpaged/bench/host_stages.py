"""Where the host's time in a decode step goes, with everything real but the size of the model.

CPU time of the host's thread, so that other processes disturb it least; stages do not overlap, so they add up to at
most the step; block tables are as wide as 2,048 tokens need, as those of a model in use.
"""

import itertools
import os
import time
from statistics import fmean
from typing import Any

from jpaged.bench.host import decoding_requests
from jpaged.bench.measure import stage_seconds
from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.cache.page_pool import pages_for
from jpaged.core.engine import Engine
from jpaged.core.engine_loop import EngineLoop
from jpaged.core.requests.response import Response
from jpaged.runtime.model_runner import ModelRunner
from jpaged.runtime.stages import Stages
from jpaged.text.tokenizer import Tokenizer
from models.config import ModelConfig

STAGES = ("schedule", "pack", "transfer", "dispatch", Stages.WAIT, "fetch", "update", "detokenise")
"""What the host does in a step, in order. Of the wait for the device only what it costs the processor counts."""

TARGETS_MS = {16: 1.5, 256: 3.0}
"""What the host may take a step, by running sequences."""

ROWS = (1, 16, 64, 256)
PAGE_SIZE, MAX_MODEL_LEN, PROMPT_TOKENS, BUDGET = 16, 2048, 32, 512
_UNTIMED_STEPS = 8

# As small as a LLaMA can be, so that the device takes little of the processor from the host.
_MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=512,
    hidden_size=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    intermediate_size=32,
    max_position_embeddings=MAX_MODEL_LEN,
    activation="silu",
    norm_eps=1e-5,
    tie_word_embeddings=True,
)


class ThreadClock:
    """Tells the CPU time of the thread. A Clock."""

    def now(self) -> float:
        """Seconds since the thread began."""
        return time.thread_time()


def host_stages(rows: tuple[int, ...] = ROWS, *, num_steps: int = 200) -> list[dict[str, Any]]:
    """Milliseconds of CPU time a decode step in each stage, for each number of running sequences.

    Means over the middle half of `num_steps` steps, in the order of what the host took: the same steps for each stage.
    `host_ms` is the whole step, with what is between the stages, `wall_ms` how long it was on this machine, and
    `target_ms` what `host_ms` may be (None where nothing is said).
    """
    return [_summary(count, _steps(count, num_steps)) for count in rows]


def _summary(rows: int, steps: list[dict[str, float]]) -> dict[str, Any]:
    """What the middle half of the steps took on average."""
    ordered = sorted(steps, key=lambda step: step["host"])
    middle = ordered[len(steps) // 4 : len(steps) - len(steps) // 4]
    ms = {name: 1e3 * fmean(step[name] for step in middle) for name in (*STAGES, "host", "wall")}
    whole = {"host_ms": ms.pop("host"), "wall_ms": ms.pop("wall"), "target_ms": TARGETS_MS.get(rows)}
    return {"rows": rows, "stages_ms": ms, **whole}


def _steps(rows: int, num_steps: int) -> list[dict[str, float]]:
    """Seconds of each stage and the whole, of steps in which `rows` sequences decode and nothing else is done."""
    length = PROMPT_TOKENS + num_steps + _UNTIMED_STEPS + 4 + rows * PROMPT_TOKENS // BUDGET
    if length > MAX_MODEL_LEN:
        raise ValueError(
            f"num_steps={num_steps}: sequences would have {length} of {MAX_MODEL_LEN} tokens; ask for fewer"
        )
    engine, runner = _engine(rows, length)
    loop = EngineLoop(engine, _tokenizer(_MODEL.vocab_size))
    responses = loop.add_all(decoding_requests(rows, PROMPT_TOKENS, length, _MODEL.vocab_size))
    while any(response.outputs[0].token_ids == [] for response in responses):
        _read(loop.step())
    samples: list[dict[str, float]] = []
    for number in range(_UNTIMED_STEPS + num_steps):
        before, wall_start = stage_seconds(engine, runner), time.perf_counter()
        start = time.thread_time()
        deltas = engine.step()
        stepped = time.thread_time()
        _read(loop.receive(deltas))
        end = time.thread_time()
        wall, after = time.perf_counter() - wall_start, stage_seconds(engine, runner)
        if number >= _UNTIMED_STEPS:
            stages = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
            samples.append(stages | {"detokenise": end - stepped, "host": end - start, "wall": wall})
    return samples


def _engine(rows: int, length: int) -> tuple[Engine, ModelRunner]:
    """An engine as the LLM class builds one, with random weights, and pages for `rows` sequences of `length` tokens."""
    import jax.numpy as jnp

    from models import build_model
    from models.weights import dummy_params

    num_pages = max(rows * pages_for(length, PAGE_SIZE), pages_for(MAX_MODEL_LEN, PAGE_SIZE))
    cache = CacheConfig(num_pages=num_pages, page_size=PAGE_SIZE)
    scheduler = SchedulerConfig(
        max_num_seqs=rows, max_num_batched_tokens=max(BUDGET, rows), max_model_len=MAX_MODEL_LEN
    )
    model = build_model(_MODEL, dtype=jnp.float32, max_model_len=MAX_MODEL_LEN)
    params = dummy_params(_MODEL, jnp.float32, 0)
    runner = ModelRunner(model, _MODEL, params, cache, scheduler, dtype="float32")
    runner.stages = Stages(time.thread_time)
    return Engine(scheduler, cache, runner, vocab_size=_MODEL.vocab_size, clock=ThreadClock()), runner


def _read(responses: list[Response]) -> None:
    for response in responses:
        response.read()


def _tokenizer(size: int) -> Tokenizer:
    """A byte-level tokenizer with short words for its tokens, so that it decodes as real ones do."""
    # Else transformers warns, on import, of a PyTorch that this package does without.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from tokenizers import Tokenizer as Backend
    from tokenizers.decoders import ByteLevel
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz"
    # The decoder reads "Ġ" as a space.
    words = itertools.islice((f"Ġ{a}{b}" for a in letters for b in letters), size)
    backend = Backend(BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.decoder = ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
