"""Safetensors folders: what loads, what is refused, and in what words."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models import load_config, load_params, resolve_source

TINY = Path(__file__).resolve().parent.parent / "fixtures" / "tiny"


def edited(tmp_path: Path, name: str, *, config=None, drop=(), add=None, rename=None, cast=None) -> str:
    """A copy of a tiny checkpoint with some of its config and tensors changed."""
    folder = tmp_path / name
    shutil.copytree(TINY / name, folder)
    document = json.loads((folder / "config.json").read_text()) | (config or {})
    (folder / "config.json").write_text(json.dumps(document))
    tensors = load_file(folder / "model.safetensors")
    tensors = {key: value for key, value in tensors.items() if key not in drop} | (add or {})
    tensors = {(rename or str)(key): value.astype(cast or value.dtype) for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def load(model: str, dtype: str = "float32"):
    source = resolve_source(model)
    return load_params(source, load_config(source), dtype)


def refusal(model: str) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        load(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_fused_and_stacked_arrays_hold_the_tensors_of_the_file():
    tensors, params = load_file(TINY / "llama" / "model.safetensors"), load(str(TINY / "llama"))
    qkv = params["layers"]["attention"]["qkv"]["kernel"]
    assert qkv.shape == (3, 2, 4, 12, 40)
    q = tensors["model.layers.1.self_attn.q_proj.weight"].reshape(2, 2, 12, 40)
    np.testing.assert_array_equal(qkv[1, :, :2], q)
    v = tensors["model.layers.2.self_attn.v_proj.weight"].reshape(2, 12, 40)
    np.testing.assert_array_equal(qkv[2, :, 3], v)
    gate_up = params["layers"]["mlp"]["gate_up"]["kernel"]
    np.testing.assert_array_equal(gate_up[0, :, 1], tensors["model.layers.0.mlp.up_proj.weight"])
    np.testing.assert_array_equal(params["head"]["kernel"], tensors["lm_head.weight"])


def test_names_load_with_and_without_the_wrappers_prefix(tmp_path):
    for name in ("llama", "opt-pre"):
        bare = load(edited(tmp_path, name, rename=lambda key: key.removeprefix("model.")))
        np.testing.assert_array_equal(bare["embed"]["embedding"], load(str(TINY / name))["embed"]["embedding"])


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_any_float_in_the_file_becomes_the_dtype_asked_for(tmp_path, kind):
    params = load(edited(tmp_path, "qwen2", cast=kind))
    exact = load(str(TINY / "qwen2"))["layers"]["attention"]["qkv"]["bias"]
    bias = params["layers"]["attention"]["qkv"]["bias"]
    assert bias.dtype == np.float32
    np.testing.assert_array_equal(bias, exact.astype(kind).astype(np.float32))
    assert load(str(TINY / "qwen2"), "bfloat16")["final_norm"]["scale"].dtype == ml_dtypes.bfloat16


def test_an_integer_tensor_is_refused_by_name(tmp_path):
    message = refusal(edited(tmp_path, "llama", add={"model.norm.weight": np.ones(40, np.int8)}))
    assert "model.norm.weight is I8" in message


def test_a_tied_checkpoint_needs_no_head_and_ignores_one(tmp_path):
    assert "head" not in load(str(TINY / "llama-tied"))
    both = load(edited(tmp_path, "llama-tied", add={"lm_head.weight": np.zeros((97, 40), np.float32)}))
    assert "head" not in both
    assert load(edited(tmp_path, "llama", config={"tie_word_embeddings": False}))["head"]["kernel"].shape == (97, 40)


def test_an_untied_checkpoint_without_a_head_is_refused(tmp_path):
    message = refusal(edited(tmp_path, "llama-tied", config={"tie_word_embeddings": False}))
    assert "missing: lm_head.weight" in message
    assert "tie_word_embeddings=true" in message


def test_all_that_is_wrong_with_a_checkpoint_is_said_at_once(tmp_path):
    lost = ("model.norm.weight", "model.layers.2.mlp.down_proj.weight")
    added = {"model.layers.3.mlp.up_proj.weight": np.zeros(3), "model.embed_tokens.weight": np.zeros((96, 40))}
    message = refusal(edited(tmp_path, "llama", drop=lost, add=added))
    assert "missing: layers.2.mlp.down_proj.weight, norm.weight" in message
    assert "unexpected: layers.3.mlp.up_proj.weight" in message
    assert "misshapen: embed_tokens.weight [96, 40] (expected [97, 40])" in message


def test_old_rotary_buffers_are_ignored(tmp_path):
    load(edited(tmp_path, "llama", add={"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(6, np.float32)}))


def test_shards_load_as_one_file_does(tmp_path):
    tensors = load_file(TINY / "mistral" / "model.safetensors")
    shutil.copy(TINY / "mistral" / "config.json", tmp_path)
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    whole, sharded = load(str(TINY / "mistral")), load(str(tmp_path))
    np.testing.assert_array_equal(
        whole["layers"]["mlp"]["gate_up"]["kernel"], sharded["layers"]["mlp"]["gate_up"]["kernel"]
    )
    (tmp_path / "b.safetensors").unlink()
    assert "b.safetensors" in refusal(str(tmp_path))
    save_file({names[1]: tensors[names[1]]}, tmp_path / "b.safetensors")
    assert f"{names[3]}" in refusal(str(tmp_path))


def test_damaged_files_are_refused_in_one_line(tmp_path):
    folder = Path(edited(tmp_path, "llama"))
    whole = (folder / "model.safetensors").read_bytes()
    for damaged in (whole[:-1000], whole[:100], b"", b"\xff" * 64):
        (folder / "model.safetensors").write_bytes(damaged)
        assert "model.safetensors" in refusal(str(folder))
    (folder / "model.safetensors").write_bytes(whole)
    for damaged in (b"{", b"[]", b"\xff\xfe"):
        (folder / "config.json").write_bytes(damaged)
        assert "config.json" in refusal(str(folder))
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(str(folder))
