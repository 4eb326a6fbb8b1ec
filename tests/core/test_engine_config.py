"""Configs: what is wrong is refused by name, what is right has a stable digest."""

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from jpaged.config.engine import EngineConfig
from jpaged.config.options import CacheConfig, ParallelConfig, SchedulerConfig
from models.config import RopeScaling
from models.families import PRESETS

MODEL = PRESETS["smollm2-135m"]
NOT_AN_INTEGER: list[Any] = [1.0, float("nan"), True, "1", [1]]

BAD: list[tuple[type, str, list[Any]]] = [
    (CacheConfig, "page_size", [*NOT_AN_INTEGER, None, 0, -1, 257]),
    (CacheConfig, "num_pages", [*NOT_AN_INTEGER, 0, -1]),
    (CacheConfig, "kv_cache_dtype", ["float64", "", None, 16]),
    (CacheConfig, "enable_prefix_caching", [1, 0, "yes", None]),
    (CacheConfig, "watermark", [-0.1, 1, 1.0, float("nan"), float("inf"), "0.1", None, True]),
    (SchedulerConfig, "max_num_seqs", [*NOT_AN_INTEGER, None, 0, 4097]),
    (SchedulerConfig, "max_num_batched_tokens", [*NOT_AN_INTEGER, None, 0, 15]),
    (SchedulerConfig, "max_model_len", [*NOT_AN_INTEGER, None, 1]),
    (SchedulerConfig, "long_prefill_token_threshold", [*NOT_AN_INTEGER, 0]),
    (ParallelConfig, "tensor_parallel_size", [*NOT_AN_INTEGER, None, 0]),
    (ParallelConfig, "parallel_style", ["gspmd", None, 1]),
    (ParallelConfig, "num_processes", [*NOT_AN_INTEGER, None, 0]),
]
BAD_ENGINE: list[tuple[str, list[Any]]] = [
    ("model_name", ["", None, 5]),
    ("dtype", ["float64", "auto", None]),
    ("load_format", ["pickle", None]),
    ("seed", [*NOT_AN_INTEGER, None, -1, 2**63]),
    ("attention_implementation", ["", 5, True]),
]


def engine(**fields: Any) -> EngineConfig:
    """An EngineConfig with these fields and a model of the presets."""
    return EngineConfig(**{"model_name": "smollm2-135m", "model": MODEL, **fields})


def message_of(kind: Any, **fields: Any) -> str:
    """The text of the ValueError that these fields give."""
    with pytest.raises(ValueError, match=r".") as caught:
        kind(**fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, name, value) for kind, name, values in BAD for value in values]
    + [(engine, name, value) for name, values in BAD_ENGINE for value in values],
)
def test_a_bad_setting_is_refused_with_its_name_its_value_and_what_to_do(kind: Any, name: str, value: Any) -> None:
    text = message_of(kind, **{name: value})
    assert text.startswith(f"{name}={value!r}: ") and "\n" not in text
    assert any(word in text for word in ("must be", "choose one of", "use 1")), text


def test_a_step_must_have_a_token_for_every_sequence() -> None:
    text = message_of(SchedulerConfig, max_num_seqs=32, max_num_batched_tokens=31)
    assert "max_num_batched_tokens=31" in text and "max_num_seqs=32" in text and "raise the one" in text


def test_a_pool_smaller_than_one_sequence_is_refused_with_both_ways_out() -> None:
    text = message_of(
        engine, cache=CacheConfig(num_pages=7, page_size=16), scheduler=SchedulerConfig(max_model_len=128)
    )
    assert "num_pages=7" in text and "num_pages of at least 8" in text and "max_model_len of at most 112" in text
    engine(cache=CacheConfig(num_pages=8, page_size=16), scheduler=SchedulerConfig(max_model_len=128))
    engine(cache=CacheConfig(num_pages=None), scheduler=SchedulerConfig(max_model_len=128))


def test_a_length_beyond_the_models_positions_is_refused() -> None:
    text = message_of(engine, scheduler=SchedulerConfig(max_model_len=8193))
    assert "max_model_len=8193" in text and "at most 8192" in text
    engine(scheduler=SchedulerConfig(max_model_len=8192))


def test_positions_that_rope_scaling_adds_may_be_used() -> None:
    stretched = replace(MODEL, rope_scaling=RopeScaling(kind="linear", factor=2.0))
    engine(model=stretched, scheduler=SchedulerConfig(max_model_len=16384))


def test_configs_are_frozen() -> None:
    for config, name in ((engine(), "seed"), (CacheConfig(), "page_size"), (SchedulerConfig(), "max_num_seqs")):
        with pytest.raises(FrozenInstanceError):
            setattr(config, name, 1)


def test_equal_configs_have_equal_digests() -> None:
    assert engine().digest() == engine().digest()
    whole, real = (engine(cache=CacheConfig(watermark=watermark)) for watermark in (0, 0.0))
    assert whole == real and whole.digest() == real.digest()
    many = (engine(model=replace(MODEL, rope_theta=theta)) for theta in (10_000, 10_000.0))
    assert len({config.digest() for config in many}) == 1


def test_every_setting_changes_the_digest() -> None:
    configs = [
        engine(),
        engine(model_name="other"),
        engine(model=replace(MODEL, qkv_bias=True)),
        engine(dtype="bfloat16"),
        engine(seed=1),
        engine(seed=2**63 - 1),
        engine(seed=2**63 - 2),
        engine(load_format="dummy"),
        engine(attention_implementation="xla"),
        engine(cache=CacheConfig(page_size=8)),
        engine(cache=CacheConfig(num_pages=1000)),
        engine(cache=CacheConfig(kv_cache_dtype="bfloat16")),
        engine(cache=CacheConfig(enable_prefix_caching=False)),
        engine(cache=CacheConfig(watermark=0.02)),
        engine(scheduler=SchedulerConfig(max_num_seqs=8)),
        engine(scheduler=SchedulerConfig(max_num_batched_tokens=256)),
        engine(scheduler=SchedulerConfig(max_model_len=1024)),
        engine(scheduler=SchedulerConfig(long_prefill_token_threshold=64)),
    ]
    digests = {config.digest() for config in configs}
    assert len(digests) == len(configs)
    assert all(len(digest) == 16 and int(digest, 16) >= 0 for digest in digests)


def test_the_digest_is_the_same_in_every_process() -> None:
    code = (
        "from jpaged.config.engine import *; from models.families import PRESETS;"
        "print(EngineConfig(model_name='smollm2-135m', model=PRESETS['smollm2-135m']).digest())"
    )
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        assert run.stdout.strip() == engine().digest()


def test_the_configs_and_the_core_load_neither_jax_nor_numpy() -> None:
    code = (
        "import sys, jpaged.config.engine, jpaged.core.engine;"
        "print([name for name in ('jax', 'jaxlib', 'flax', 'numpy', 'transformers') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
