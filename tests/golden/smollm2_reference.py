"""The SmolLM2 tokenizer that the golden makers encode with, built from a GGUF file with the tokenizers library.

It does what the published tokenizer.json does (single digits, then byte-level BPE), with nothing of this project.
"""

from pathlib import Path

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # gguf's token type for special tokens


def reference_tokenizer(path: Path) -> Tokenizer:
    """A tokenizers.Tokenizer with the vocabulary, merges and special tokens of the GGUF file at `path`."""
    fields = GGUFReader(path).fields

    def meta(key):
        return fields[f"tokenizer.ggml.{key}"].contents()

    assert (meta("model"), meta("pre")) == ("gpt2", "smollm")
    tokens = meta("tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in meta("merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, meta("token_type"), strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer


def chat_template(path: Path) -> str:
    """The Jinja chat template stored in the GGUF file at `path`."""
    return GGUFReader(path).fields["tokenizer.chat_template"].contents()
