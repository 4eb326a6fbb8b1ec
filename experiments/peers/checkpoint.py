"""The catalog model in the forms that other engines read.

The same numbers in every form; what is there already is not made again.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

from jpaged.text.gguf_tokenizer import load_gguf_tokenizer
from models.catalog import fetch
from models.config import ModelConfig
from models.gguf_file import GGUFFile, config_of_gguf

DTYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def hugging_face_folder(model: str, dtype: str, root: Path) -> Path:
    """A folder with config, tokenizer and safetensors of a catalog model."""
    folder = root / f"{model}-{dtype}"
    if (folder / "DONE").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = fetch(model)
    config = config_of_gguf(source)
    file = GGUFFile(source, config)
    tensors = {
        name if name.startswith("lm_head") else f"model.{name}": np.ascontiguousarray(
            file.read(name).astype(DTYPES[dtype])
        )
        for name in file.shapes()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_hf_config(config, dtype), indent=1))
    load_gguf_tokenizer(source).save_pretrained(folder)
    (folder / "DONE").touch()
    return folder


def gguf_file(model: str, dtype: str, root: Path) -> Path:
    """A GGUF file of a catalog model with every matrix in `dtype`."""
    path = root / f"{model}-{dtype}.gguf"
    if path.exists():
        return path
    root.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(fetch(model))
    part = path.with_suffix(".part")
    writer = GGUFWriter(part, reader.fields["general.architecture"].contents())
    left_out = ("general.architecture", "general.file_type", "general.quantization_version")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in left_out:
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    halves = dtype == "bfloat16"
    writer.add_file_type(LlamaFileType.MOSTLY_BF16 if halves else LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(size) for size in reversed(tensor.shape)])
        if halves and values.ndim > 1:
            kind = GGMLQuantizationType.BF16
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)
    return path


def _hf_config(config: ModelConfig, dtype: str) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": dtype,
        "torch_dtype": dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_ids[0],
    }
