"""Text to token ids, and ids to text: the one place where either happens.

Plain lists of ints and strings; a user's mistake is a one-line ValueError; importing this loads nothing heavy.
"""

from __future__ import annotations

import os
from collections import abc
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jpaged.core.requests.request import Request
from jpaged.text.gguf_tokenizer import load_gguf_tokenizer
from jpaged.text.text_stream import REPLACEMENT, TextStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAT_ROLES = ("system", "developer", "user", "assistant", "tool")

# At least one of these is in every folder that has a tokenizer.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer_config.json",
)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder (any that AutoTokenizer loads, without torch) or of a GGUF file.

    Nothing is fetched, and no code from the folder is run. Raises ValueError with the remedy where there is none.
    """
    path = Path(path)
    # Else transformers warns, on import, of a PyTorch that this package does without.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    if path.is_dir():
        return Tokenizer(_load_folder(path))
    if not path.is_file():
        raise ValueError(f"tokenizer path {str(path)!r} does not exist: give a Hugging Face folder or a .gguf file")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"tokenizer path {str(path)!r} is neither a folder nor a GGUF file")
    return Tokenizer(load_gguf_tokenizer(path))


def has_tokenizer(path: str | Path) -> bool:
    """Whether there is a tokenizer to load: a GGUF file has one, a folder if one of the usual files is in it."""
    path = Path(path)
    return path.is_file() or any((path / name).is_file() for name in _TOKENIZER_FILES)


def _load_folder(path: Path) -> PreTrainedTokenizerBase:
    if not has_tokenizer(path):
        raise ValueError(
            f"{path} has no tokenizer files: copy tokenizer.json and tokenizer_config.json of the model into it, "
            "or give a folder that has them"
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # from broken JSON to a missing library: all of it is about the folder
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path}: its tokenizer cannot be loaded ({reason[:300]}); copy tokenizer.json and tokenizer_config.json "
            "of the model into the folder again"
        ) from error
    # With a config but no vocabulary, transformers makes a tokenizer that turns every text into nothing.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ValueError(f"{path} has a tokenizer config but no vocabulary: copy tokenizer.json of the model into it")
    return tokenizer


class Tokenizer:
    """A vocabulary with the rules to cut text into its tokens, to join them, and to lay out a chat.

    It has the Text role of core/requests/response.py.
    """

    def __init__(self, hf_tokenizer: PreTrainedTokenizerBase) -> None:
        self._hf = hf_tokenizer
        from transformers import PreTrainedTokenizerFast

        # What transformers itself would ask, six times as fast; a class with rules of its own is left to them.
        plain = getattr(type(hf_tokenizer), "_decode", None) is PreTrainedTokenizerFast._decode
        self._backend = getattr(hf_tokenizer, "backend_tokenizer", None) if plain else None
        from tokenizers.decoders import ByteLevel

        # Such a decoder only joins bytes: a token's text depends on its neighbours only where a character is cut.
        self._joins = self._backend is not None and isinstance(self._backend.decoder, ByteLevel)
        self._pieces: dict[bool, dict[int, str | None]] = {True: {}, False: {}}

    def __len__(self) -> int:
        """Tokens in the vocabulary, added ones included. A model's logits may be padded to more."""
        return len(self._hf)

    @property
    def bos_token_id(self) -> int | None:
        """The id that begins a sequence, or None."""
        return cast("int | None", self._hf.bos_token_id)

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends a sequence, or None. A model's generation config may name more."""
        return cast("int | None", self._hf.eos_token_id)

    @property
    def has_chat_template(self) -> bool:
        """True if `apply_chat_template` works without a template of the caller's own."""
        return bool(getattr(self._hf, "chat_template", None))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of `text`; with `add_special_tokens`, what the model puts around it (often a BOS) too."""
        if not isinstance(text, str):
            raise ValueError(f"text must be a string, not {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"text is not Unicode: a lone surrogate at character {error.start}") from None
        # verbose=False: the engine checks how long a prompt may be.
        return list(self._hf(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])

    def decode(self, ids: abc.Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD, ids outside the vocabulary nothing.

        Spaces are never tidied up, whatever the tokenizer's config says: that would change text already streamed.
        """
        if any(index < 0 for index in ids):
            raise ValueError(f"token id {min(ids)} is negative")
        if self._backend is not None:
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        text = self._hf.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        return cast("str", text)

    def piece(self, token_id: int, skip_special_tokens: bool = True) -> str | None:
        """The text that a token adds, wherever it stands between whole characters.

        None where the token alone does not tell: it holds part of a character, or the decoder joins tokens by
        rules of its own, as SentencePiece's do.
        """
        pieces = self._pieces[skip_special_tokens]
        if token_id not in pieces:
            text = self.decode([token_id], skip_special_tokens) if self._joins else None
            pieces[token_id] = None if text is None or REPLACEMENT in text else text
        return pieces[token_id]

    def stream(self, request: Request) -> TextStream:
        """The text of a sequence of the request, as its tokens come, up to a stop string."""
        params = request.params
        return TextStream(
            self,
            prompt_token_ids=request.prompt_token_ids,
            stop=params.stop or (),
            skip_special_tokens=params.skip_special_tokens,
            include_stop_str_in_output=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )

    def spell(self, token_id: int) -> str:
        """The text of one id, also of a special one."""
        return self.decode([token_id], skip_special_tokens=False)

    def convert_ids_to_tokens(self, ids: abc.Sequence[int]) -> list[str | None]:
        """The vocabulary's own spelling of each id (byte-level BPE writes a space as "Ġ"); None outside it."""
        return cast("list[str | None]", self._hf.convert_ids_to_tokens(list(ids)))

    def apply_chat_template(
        self, messages: abc.Sequence[abc.Mapping[str, Any]], add_generation_prompt: bool = True, **kw: Any
    ) -> list[int]:
        """The token ids of a chat, laid out by the model's template.

        `messages`: dicts with a `role` of CHAT_ROLES and a `content`, a string or a list of `{"type": "text"}` parts
        (joined with newlines). `kw` goes to the template (`tools`, `chat_template`, `continue_final_message`, its own
        variables). The template writes all special tokens itself: none is added, so BOS is never doubled.
        Raises ValueError: no template, a malformed message, or the template's own complaint.
        """
        chat = _checked_messages(messages)
        for name in ("tokenize", "return_dict", "return_tensors"):
            if name in kw:
                raise ValueError(f"{name} cannot be set: apply_chat_template returns a list of token ids")
        if not self.has_chat_template and kw.get("chat_template") is None:
            raise ValueError("this tokenizer has no chat template: use generate with a plain prompt, or pass one")
        try:
            text = self._hf.apply_chat_template(chat, tokenize=False, add_generation_prompt=add_generation_prompt, **kw)
        except Exception as error:  # a template is a program that came with the model: it may raise anything
            raise ValueError(f"chat template: {' '.join(str(error).split())}") from error
        return self.encode(cast("str", text), add_special_tokens=False)


def _checked_messages(messages: abc.Sequence[abc.Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A copy of `messages`, every content a string. Raises ValueError naming the message."""
    if isinstance(messages, str | abc.Mapping) or not isinstance(messages, abc.Sequence) or not messages:
        raise ValueError("messages must be a list, not empty, of {'role': ..., 'content': ...}")
    return [_checked_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _checked_message(message: abc.Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, abc.Mapping):
        raise ValueError(f"{where} must be a dict with role and content, not {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if role not in CHAT_ROLES:
        raise ValueError(f"{where}.role is {role!r}: give one of {', '.join(CHAT_ROLES)}")
    if content is None and role == "assistant" and message.get("tool_calls"):
        return dict(message)
    if content is None:
        raise ValueError(f"{where} ({role}) has no content: give a string")
    return {**message, "content": _joined_content(content, f"{where}.content")}


def _joined_content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, abc.Sequence):
        raise ValueError(f"{where} must be a string or a list of text parts, not {type(content).__name__}")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, abc.Mapping) else None
        if kind != "text":
            raise ValueError(f"{where}[{index}] has type {kind!r}: only 'text' parts are supported")
        if not isinstance(part.get("text"), str):
            raise ValueError(f"{where}[{index}].text must be a string")
        texts.append(part["text"])
    return "\n".join(texts)
