"""A Hugging Face tokenizer built from the metadata of a GGUF file.

Gives the ids of the model's own tokenizer.json for the pre-tokenizers listed here; any other is refused by name.
transformers' own conversion needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer
    from transformers import PreTrainedTokenizerFast

# Values of tokenizer.ggml.token_type.
_CONTROL, _USER_DEFINED = 3, 4

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class _PreTokenizer:
    """How text is split before byte-level BPE, and the defaults that come with the name.

    `split` None: GPT-2's own pattern, which the ByteLevel pre-tokenizer carries. `single_digits`: each numeric
    character stands alone before that pattern runs. `ignore_merges`: a piece that is a token stays whole.
    """

    split: str | None = None
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_LLAMA3 = _PreTokenizer(split=_LLAMA3_SPLIT, ignore_merges=True, add_bos=True)

# tokenizer.ggml.pre -> how the model's own tokenizer.json splits text. A wrong pattern gives plausible, wrong ids, so
# a name is listed only where the pattern is known; llama.cpp's "default" stands for "unknown" and is not.
_PRE_TOKENIZERS = {
    "gpt-2": _PreTokenizer(),
    "smollm": _PreTokenizer(single_digits=True),
    "starcoder": _PreTokenizer(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _PreTokenizer(split=_QWEN2_SPLIT, nfc=True),
}


def load_gguf_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer that a GGUF file describes, with its special tokens and chat template.

    Raises ValueError, naming the key and the value, for a tokenizer that cannot be rebuilt exactly.
    """
    from transformers import PreTrainedTokenizerFast

    from models.gguf_header import read_gguf_header

    metadata = read_gguf_header(path).metadata
    pre = _pre_tokenizer(metadata, path)
    tokens = _required(metadata, "tokens", path)
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {name: _token_at(metadata, f"{key}_token_id", tokens, path) for name, key in keys.items()}
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", pre.add_bos)
    add_eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    for flag, name in ((add_bos, "bos"), (add_eos, "eos")):
        if flag and special[f"{name}_token"] is None:
            raise ValueError(
                f"{path}: tokenizer.ggml.add_{name}_token is set but tokenizer.ggml.{name}_token_id is not"
            )
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_bpe(metadata, tokens, pre, path),
        chat_template=metadata.get("tokenizer.chat_template"),
        add_bos_token=add_bos,
        add_eos_token=add_eos,
        clean_up_tokenization_spaces=False,
        **special,
    )


def _pre_tokenizer(metadata: dict[str, Any], path: str | Path) -> _PreTokenizer:
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise ValueError(
            f"{path}: tokenizer.ggml.model is {model!r}; only 'gpt2' (byte-level BPE) can be rebuilt from a GGUF file. "
            "Point to the model's Hugging Face folder for the tokenizer instead"
        )
    name = metadata.get("tokenizer.ggml.pre")
    if name not in _PRE_TOKENIZERS:
        raise ValueError(
            f"{path}: tokenizer.ggml.pre is {name!r}; known are {', '.join(sorted(_PRE_TOKENIZERS))}. "
            "Point to the model's Hugging Face folder for the tokenizer instead"
        )
    if metadata.get("tokenizer.ggml.add_space_prefix"):
        raise ValueError(f"{path}: tokenizer.ggml.add_space_prefix with byte-level BPE is not implemented")
    return _PRE_TOKENIZERS[name]


def _byte_level_bpe(metadata: dict[str, Any], tokens: list[str], pre: _PreTokenizer, path: str | Path) -> RustTokenizer:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ValueError(
            f"{path}: tokenizer.ggml.tokens holds {len(tokens) - len(vocab)} duplicate tokens; convert it again"
        )
    # A merge is "left right"; neither side holds a space, which the byte alphabet spells "Ġ".
    merges: list[Any] = [tuple(merge.split(" ", 1)) for merge in _required(metadata, "merges", path)]
    if any(len(merge) != 2 for merge in merges):
        raise ValueError(f"{path}: tokenizer.ggml.merges holds entries that are not two tokens; convert it again")
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges))
    except Exception as error:  # the Rust library raises bare Exception
        raise ValueError(f"{path}: tokenizer.ggml.merges do not fit tokenizer.ggml.tokens ({error})") from error
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre.single_digits else []
    if pre.split is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type") or []
    for kind, add in ((_CONTROL, tokenizer.add_special_tokens), (_USER_DEFINED, tokenizer.add_tokens)):
        chosen = [token for token, its in zip(tokens, types, strict=False) if its == kind]
        add([AddedToken(token, normalized=False, special=kind == _CONTROL) for token in chosen])
    return tokenizer


def _required(metadata: dict[str, Any], name: str, path: str | Path) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not values:
        raise ValueError(f"{path}: the GGUF file has no tokenizer.ggml.{name}; it carries no byte-level BPE tokenizer")
    return values


def _token_at(metadata: dict[str, Any], key: str, tokens: list[str], path: str | Path) -> str | None:
    index = metadata.get(f"tokenizer.ggml.{key}")
    if index is None:
        return None
    if not 0 <= index < len(tokens):
        raise ValueError(f"{path}: tokenizer.ggml.{key} is {index}, outside the {len(tokens)} tokens of the vocabulary")
    return tokens[index]
