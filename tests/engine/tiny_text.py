"""A tiny checkpoint that reads and writes text: the random LLaMA with a byte-level tokenizer of its 97 ids.

Lives here: the vocabulary, and the writing of the folder.
Promises: letters, digits, some words, and the single bytes of "é", "世" and "😀"; id 2 is "</s>".
Must not know: engines.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.engine.tiny import TINY_LLAMA

SPECIAL = ["<pad>", "<s>", "</s>"]
MERGES = [
    "h e", "l l", "he ll", "hell o", "Ġ hello", "t h", "th e", "Ġ the", "i n", "in g", "a n", "an d", "Ġ and", "o u",
    "e r", "r e",
]  # fmt: skip
CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?' \né世😀"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ m.role }} {{ m.content }}{% endfor %}{% if add_generation_prompt %}\n{% endif %}"
)


def vocabulary() -> list[str]:
    """The spelling of every id."""
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    [(letters, _)] = as_bytes.pre_tokenize_str(CHARACTERS)
    return [*SPECIAL, *letters, *(merge.replace(" ", "") for merge in MERGES)]


def write_text_model(folder: Path, *, template: str | None = TEMPLATE, source: str = TINY_LLAMA) -> Path:
    """A copy of the checkpoint `source` with the tokenizer beside it."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    merges: Any = [tuple(merge.split()) for merge in MERGES]
    vocab = {token: index for index, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
