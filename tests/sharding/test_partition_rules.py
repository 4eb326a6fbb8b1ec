"""The rules say where every array is split, and what cannot be split is refused with the numbers that can."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from models.families import PRESETS
from models.partition import check_shards, kv_repeats, padded_vocab, param_specs, shard_counts, shard_of, sharded_config
from models.sharded_weights import bytes_of_shard, sharded_parameter_shapes

SPLIT = {
    "llama": {
        "layers/attention/qkv/kernel": P(None, "model"),
        "layers/attention/qkv/bias": P(None, "model"),
        "layers/attention/out/kernel": P(None, None, "model"),
        "layers/attention/out/bias": P(),
        "layers/mlp/gate_up/kernel": P(None, "model"),
        "layers/mlp/down/kernel": P(None, None, "model"),
        "layers/mlp/down/bias": P(),
        "layers/attention_norm/scale": P(),
        "layers/attention/q_norm/scale": P(),
        "embed/embedding": P(),
        "head/kernel": P("model"),
    },
    "opt": {
        "layers/attention/qkv/bias": P(None, "model"),
        "layers/fc1/kernel": P(None, "model"),
        "layers/fc1/bias": P(None, "model"),
        "layers/fc2/kernel": P(None, None, "model"),
        "layers/fc2/bias": P(),
        "positions/embedding": P(),
        "project_in/kernel": P(),
    },
}


# With all the arrays that a model of the family may have.
WHOLE = {
    "llama": replace(PRESETS["llama-7b"], qkv_bias=True, o_bias=True, mlp_bias=True, qk_norm=True),
    "opt": PRESETS["opt-350m"],
}


@pytest.mark.parametrize("family", SPLIT)
def test_each_array_is_split_as_its_place_says(family):
    config = WHOLE[family]
    specs = param_specs(config, sharded_parameter_shapes(config, jnp.float32, 2))
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): spec
        for path, spec in jax.tree_util.tree_leaves_with_path(specs, is_leaf=lambda leaf: isinstance(leaf, P))
    }
    assert {path: found[path] for path in SPLIT[family]} == SPLIT[family]


@pytest.mark.parametrize("model", ["opt-13b", "opt-66b", "opt-175b", "llama-13b", "llama-3-70b"])
@pytest.mark.parametrize("shards", [2, 4, 8])
def test_all_shards_together_hold_the_model_once_and_what_is_looked_up_on_each(model, shards):
    config = PRESETS[model]
    tables = config.vocab_size * config.embedding_dim
    if config.family.learned_positions:
        tables += (config.max_position_embeddings + 2) * config.hidden_size
    held = bytes_of_shard(config, jnp.bfloat16, shards)
    split = 2 * (config.num_params - tables + (tables if config.tie_word_embeddings else 0))
    assert held == pytest.approx(split / shards + 2 * tables, rel=0.01)


def test_few_kv_heads_are_repeated_and_their_queries_dealt_out():
    config = PRESETS["llama-3-70b"]
    assert kv_repeats(config, 8) == 1 and kv_repeats(config, 16) == 2
    whole = sharded_config(config, 16)
    assert (whole.num_heads, whole.num_kv_heads) == (64, 16)
    shard = shard_of(whole, 16)
    assert (shard.num_heads, shard.num_kv_heads, shard.intermediate_size) == (4, 1, 1792)
    assert sharded_parameter_shapes(config, jnp.float32, 16)["layers"]["attention"]["qkv"]["kernel"].shape[1:4] == (
        16, 6, 128,
    )  # fmt: skip


def test_a_tied_head_becomes_an_array_of_its_own_and_a_vocabulary_is_padded():
    config = replace(PRESETS["opt-125m"], vocab_size=97)
    assert sharded_config(config, 1) is config and padded_vocab(config, 1) == 97
    assert sharded_config(config, 4).tie_word_embeddings is False
    assert sharded_parameter_shapes(config, jnp.float32, 4)["head"]["kernel"].shape == (100, 768)


def test_numbers_that_do_not_divide_are_refused_with_those_that_do():
    assert shard_counts(PRESETS["opt-13b"], 16) == [1, 2, 4, 5, 8, 10]
    assert shard_counts(PRESETS["smollm2-135m"]) == [1, 3]
    said = "9 heads, 3 kv heads and an ffn of 1536 do not divide into 2 equal shards; use one of 1, 3"
    with pytest.raises(ValueError, match=re.escape(said)):
        check_shards(PRESETS["smollm2-135m"], 2)
    with pytest.raises(ValueError, match=re.escape("tensor_parallel_size=3: 64 heads, 8 kv heads")):
        check_shards(PRESETS["llama-3-70b"], 3)
