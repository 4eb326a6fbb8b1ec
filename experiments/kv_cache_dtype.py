"""What an int8 or fp8 pool costs in quality: perplexity and greedy agreement against a float32 pool.

Every key and value that attention reads has gone through the pool. The text needs no network (`pydoc_data.topics`).
"""

import math
from functools import partial
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.kinds import KVCacheDtypeConfig, Outcome, Summary
from jpaged import LLM, SamplingParams
from jpaged.runtime.memory import pool_dtype
from jpaged.text.tokenizer import load_tokenizer
from models import StepInputs, build_model, load_config, load_params, resolve_source
from pallas_kernels import KVPages, allocate

PAGE_SIZE = 16
CHUNK = 256
PROMPT_TOKENS = 64


def run(config: KVCacheDtypeConfig) -> Outcome:
    """Both measurements of a pool dtype."""
    return Outcome(measure_text(config) | measure_greedy(config), facts={"device": jax.devices()[0].device_kind})


class TextScorer:
    """A model over a pool of one sequence, in chunks of CHUNK tokens."""

    def __init__(self, model_name: str, window: int) -> None:
        source = resolve_source(model_name)
        self.config = load_config(source)
        self.params = load_params(source, self.config, jnp.dtype("float32"))
        self.model = build_model(self.config, dtype="float32", max_model_len=window)
        self.window = window
        self._step = jax.jit(partial(score_chunk, model=self.model), donate_argnums=1)

    def score(self, ids: np.ndarray, kv_cache_dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """Cross entropy of each token given those before it in its window, and the likeliest token in its place.

        Both `[windows, window - 1]`: the first token of a window has nothing before it. `ids` is `[windows, window]`.
        """
        assert ids.shape[1] == self.window
        pages = -(-self.window // PAGE_SIZE)
        shape = self.config.num_layers, pages + 1, PAGE_SIZE, self.config.num_kv_heads, self.config.head_dim
        pool = allocate(*shape, pool_dtype(kv_cache_dtype, "float32"))
        losses, choices = [], []
        for window in ids:
            targets = np.append(window[1:], 0)
            parts = []
            for first in range(0, self.window, CHUNK):
                inputs = chunk_inputs(window, first, pages)
                target = np.resize(targets[first : first + CHUNK], CHUNK)
                pool, part = self._step(self.params, pool, inputs, jnp.asarray(target, jnp.int32))
                parts.append(part)
            loss, choice = (np.concatenate(x)[: self.window - 1] for x in zip(*jax.device_get(parts), strict=True))
            losses.append(loss)
            choices.append(choice)
        return np.stack(losses), np.stack(choices)


def chunk_inputs(window: np.ndarray, first: int, pages: int) -> StepInputs:
    """One step's arrays: the tokens of `window` from `first` on, padded to CHUNK; page i holds the i-th PAGE_SIZE."""
    count = min(CHUNK, len(window) - first)
    position = np.arange(CHUNK) + first
    live = np.arange(CHUNK) < count
    ints = partial(jnp.asarray, dtype=jnp.int32)
    # A second, empty row: one row alone takes another path through XLA's CPU matrix product.
    table = np.stack([np.arange(1, pages + 1), np.zeros(pages)])
    return StepInputs(
        token_ids=ints(np.where(live, window[np.minimum(position, len(window) - 1)], 0)),
        positions=ints(np.where(live, position, 0)),
        slots=ints(np.where(live, position + PAGE_SIZE, (pages + 1) * PAGE_SIZE + np.arange(CHUNK))),
        block_tables=ints(table),
        context_lens=ints([first + count, 0]),
        query_starts=ints([0, count, count]),
        sample_rows=ints(np.arange(CHUNK)),
    )


def score_chunk(
    params: Any, pool: KVPages, inputs: StepInputs, targets: jax.Array, *, model: Any
) -> tuple[KVPages, tuple[jax.Array, jax.Array]]:
    """The pool after one chunk, and each of its tokens' cross entropy with the next and the likeliest next."""
    logits, pool = model.apply({"params": params}, inputs, pool)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return pool, (loss, logits.argmax(axis=-1))


def text_windows(model_name: str, num_tokens: int, window: int) -> np.ndarray:
    """`[windows, window]` ids of Python's own language reference, at least `num_tokens` of them to be predicted."""
    path = resolve_source(model_name).path
    assert path is not None, "a preset without weights has no tokenizer"
    text = "\n\n".join(topics[name] for name in sorted(topics))
    count = -(-num_tokens // (window - 1))
    ids = load_tokenizer(path).encode(text)[: count * window]
    if len(ids) < count * window:
        raise ValueError(f"num_tokens={num_tokens}: the text has {len(ids)} tokens; ask for fewer")
    return np.asarray(ids).reshape(count, window)


def measure_text(config: KVCacheDtypeConfig) -> Summary:
    """How well a model with this pool predicts a text; `perplexity_change` is against float32."""
    scorer = TextScorer(config.model, config.window)
    ids = text_windows(config.model, config.num_tokens, config.window)
    scores = {dtype: scorer.score(ids, dtype) for dtype in _compared(config)}
    perplexity = {dtype: math.exp(losses.mean(dtype=np.float64)) for dtype, (losses, _) in scores.items()}
    losses, choices = scores[config.kv_cache_dtype]
    return {
        "num_tokens": losses.size,
        "perplexity": perplexity[config.kv_cache_dtype],
        "perplexity_change": perplexity[config.kv_cache_dtype] / perplexity["float32"] - 1,
        "same_argmax": float((choices == scores["float32"][1]).mean()),
    }


def measure_greedy(config: KVCacheDtypeConfig) -> Summary:
    """Greedy tokens of an engine with this pool beside those of the float32 pool's, from the same prompts.

    `same_tokens` compares free runs position by position: after its first other token a run is another text.
    `same_choices` asks for the next token after every prefix of the float32 pool's runs.
    """
    length = PROMPT_TOKENS + config.run_tokens
    windows = text_windows(config.model, config.num_runs * (length - 1), length)
    prompts = windows[:, :PROMPT_TOKENS].tolist()
    params = SamplingParams(temperature=0.0, max_tokens=config.run_tokens, ignore_eos=True)
    runs: dict[str, np.ndarray] = {}
    for dtype in _compared(config):
        rows = max(2, config.num_runs)
        llm = LLM(config.model, kv_cache_dtype=dtype, max_model_len=length, max_num_seqs=rows)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        runs[dtype] = np.array([output.outputs[0].token_ids for output in outputs])
    right = runs["float32"]
    texts = np.concatenate([np.array(prompts), right], axis=1)
    choices = TextScorer(config.model, length).score(texts, config.kv_cache_dtype)[1][:, PROMPT_TOKENS - 1 :]
    same = runs[config.kv_cache_dtype] == right
    return {
        "num_run_tokens": same.size,
        "same_tokens": float(same.mean()),
        "same_runs": int(same.all(axis=1).sum()),
        "num_runs": len(same),
        "same_choices": float((choices == right).mean()),
    }


def _compared(config: KVCacheDtypeConfig) -> dict[str, None]:
    return dict.fromkeys(("float32", config.kv_cache_dtype))
