"""jpaged.text.tokenizer: Hugging Face folders and GGUF files made here, and SmolLM2's own file.

Nothing is fetched but the default model's file, by the tests that need it. The expected ids of SmolLM2 are in
fixtures/smollm2_tokenizer.json.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jpaged.text import gguf_tokenizer
from jpaged.text.text_stream import TextStream
from jpaged.text.tokenizer import Tokenizer, load_tokenizer

GOLDENS = json.loads((Path(__file__).parent / "fixtures" / "smollm2_tokenizer.json").read_text(encoding="utf-8"))

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "12 3", "i s"]
SPECIAL = ["<pad>", "<s>", "</s>"]
# Alternates like LLaMA-2's, writes the BOS itself, and complains in its own words.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def vocabulary() -> list[str]:
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def write_folder(folder: Path, config: dict[str, Any]) -> Path:
    """A folder as the hub has them: byte-level BPE in tokenizer.json, and tokenizer_config.json."""
    merges: Any = [tuple(merge.split()) for merge in MERGES]
    vocab = {token: index for index, token in enumerate(vocabulary())}
    tokenizer = RustTokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def hf_folder(folder: Path, **config: Any) -> Path:
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return write_folder(folder, fast | config)


def write_gguf(path: Path, **changes: Any) -> Path:
    """A GGUF file with one tensor and the tokenizer metadata of `vocabulary`; None leaves a key out."""
    tokens = changes.pop("tokens", vocabulary())
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "merges": MERGES,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 0,
        "chat_template": TEMPLATE,
    } | changes
    writer = GGUFWriter(path, "llama")
    for name, value in fields.items():
        key = "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf(tmp_path: Path, **changes: Any) -> Tokenizer:
    return load_tokenizer(write_gguf(tmp_path / "model.gguf", **changes))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(hf_folder(tmp_path, chat_template=TEMPLATE))


# --- text and ids ---------------------------------------------------------------------------------------------------


def test_a_hugging_face_folder_encodes_and_decodes(tokenizer: Tokenizer):
    ids = tokenizer.encode("hello 123é")
    assert tokenizer.convert_ids_to_tokens(ids) == ["hello", "Ġ", "123", "Ã", "©"]
    assert tokenizer.decode(ids) == "hello 123é"
    assert all(type(index) is int for index in ids)
    assert len(tokenizer) == len(vocabulary())
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


def test_special_tokens_are_skipped_only_on_request(tokenizer: Tokenizer):
    ids = tokenizer.encode("hello</s>")
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "hello</s>"


def test_ids_outside_the_vocabulary_decode_to_nothing(tokenizer: Tokenizer):
    [hello] = tokenizer.encode("hello")
    assert tokenizer.decode([hello, 10**6, hello]) == "hellohello"
    with pytest.raises(ValueError, match="-1 is negative"):
        tokenizer.decode([hello, -1])


def test_empty_text_has_no_ids_and_no_ids_have_empty_text(tokenizer: Tokenizer):
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_decoding_never_tidies_up_spaces(tmp_path: Path):
    tokenizer = load_tokenizer(hf_folder(tmp_path, clean_up_tokenization_spaces=True))
    assert tokenizer.decode(tokenizer.encode("hello , is n't it ?")) == "hello , is n't it ?"


@pytest.mark.parametrize("text", [None, 3, b"hello", ["hello"]])
def test_text_that_is_no_string_is_refused(tokenizer: Tokenizer, text: Any):
    with pytest.raises(ValueError, match="text must be a string"):
        tokenizer.encode(text)


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer):
    with pytest.raises(ValueError, match="lone surrogate at character 2"):
        tokenizer.encode("ab\ud83d")


def test_a_long_text_makes_no_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tokenizer = load_tokenizer(hf_folder(tmp_path, model_max_length=4))
    assert len(tokenizer.encode("hello" * 50)) == 50
    assert capsys.readouterr() == ("", "")


def test_the_bos_of_a_folder_with_vocab_and_merges_is_added(tmp_path: Path):
    """OPT's folders are like this: no tokenizer.json, GPT-2's files, and add_bos_token."""
    vocab = {token: index for index, token in enumerate(vocabulary())}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES))
    config = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "pad_token": "<pad>"}
    config |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("hello") == [2, vocab["hello"]]
    assert tokenizer.encode("hello", add_special_tokens=False) == [vocab["hello"]]


# --- what cannot be loaded ------------------------------------------------------------------------------------------


def one_line(error: pytest.ExceptionInfo[ValueError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_folder_without_tokenizer_files_is_refused_with_the_remedy(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match=r"no tokenizer files.*copy tokenizer\.json") as error:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in one_line(error)


def test_a_folder_with_a_config_but_no_vocabulary_is_refused(tmp_path: Path):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    with pytest.raises(ValueError, match="no vocabulary"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_file_is_refused_in_one_line(tmp_path: Path):
    hf_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model":')
    with pytest.raises(ValueError, match="cannot be loaded") as error:
        load_tokenizer(str(tmp_path))
    one_line(error)


def test_a_path_that_is_neither_folder_nor_gguf_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="does not exist"):
        load_tokenizer(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="neither a folder nor a GGUF file"):
        load_tokenizer(tmp_path / "notes.txt")


def test_importing_the_module_loads_nothing_heavy():
    script = "import sys, jpaged.text.tokenizer, jpaged.text.text_stream; print(*sys.modules)"
    root = Path(__file__).parent.parent
    out = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    loaded = set(out.stdout.split())
    assert not loaded & {"transformers", "tokenizers", "gguf", "numpy", "jax", "jinja2"}


# --- chats ----------------------------------------------------------------------------------------------------------


def chat(*contents: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def test_a_chat_is_laid_out_by_its_template(tokenizer: Tokenizer):
    assert tokenizer.has_chat_template
    ids = tokenizer.apply_chat_template(chat("hello", "is", "12"))
    text = "<s>[user]hello[assistant]is[user]12[assistant]"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    without = tokenizer.apply_chat_template(chat("hello"), add_generation_prompt=False)
    assert tokenizer.decode(without, skip_special_tokens=False) == "<s>[user]hello"


def test_a_template_gets_the_callers_variables(tokenizer: Tokenizer):
    ids = tokenizer.apply_chat_template(chat("a"), chat_template="{{ messages[0].content }}{{ depth }}", depth=3)
    assert tokenizer.decode(ids) == "a3"


def test_the_bos_that_a_template_writes_is_not_doubled(tmp_path: Path):
    tokenizer = gguf(tmp_path, add_bos_token=True)
    assert tokenizer.encode("hello")[0] == 1
    assert tokenizer.apply_chat_template(chat("hello")).count(1) == 1


def test_text_parts_are_joined_with_newlines(tokenizer: Tokenizer):
    parts = [{"type": "text", "text": "hello"}, {"type": "text", "text": "12"}]
    messages = [{"role": "user", "content": parts}]
    assert tokenizer.apply_chat_template(messages) == tokenizer.apply_chat_template(chat("hello\n12"))
    assert messages == [{"role": "user", "content": parts}]


def test_an_assistant_that_only_calls_tools_needs_no_content(tokenizer: Tokenizer):
    messages = [*chat("hello"), {"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}]
    assert tokenizer.apply_chat_template(messages)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "messages must be a list"),
        ("hello", "messages must be a list"),
        ({"role": "user", "content": "a"}, "messages must be a list"),
        (["hello"], r"messages\[0\] must be a dict"),
        ([{"role": "robot", "content": "a"}], r"messages\[0\]\.role is 'robot'"),
        ([{"content": "a"}], r"messages\[0\]\.role is None"),
        ([*chat("a"), {"role": "assistant"}], r"messages\[1\] \(assistant\) has no content"),
        ([{"role": "user", "content": None}], "has no content"),
        ([{"role": "user", "content": 3}], "must be a string or a list of text parts, not int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] has type 'image_url'"),
        ([{"role": "user", "content": ["a"]}], r"content\[0\] has type None"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text must be a string"),
        ([*chat("a"), *chat("b")], "chat template: roles must alternate"),
    ],
)
def test_a_malformed_chat_is_refused_saying_where(tokenizer: Tokenizer, messages: Any, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        tokenizer.apply_chat_template(messages)


@pytest.mark.parametrize("template", ["{{ messages[0].content + 1 }}", "{{ nothing.at_all }}", "{% if %}"])
def test_a_template_that_fails_is_a_value_error(tokenizer: Tokenizer, template: str):
    with pytest.raises(ValueError, match="chat template: "):
        tokenizer.apply_chat_template(chat("a"), chat_template=template)


def test_a_tokenizer_without_template_refuses_chats(tmp_path: Path):
    tokenizer = load_tokenizer(hf_folder(tmp_path))
    assert not tokenizer.has_chat_template
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.apply_chat_template(chat("a"))


def test_the_form_of_the_answer_cannot_be_changed(tokenizer: Tokenizer):
    with pytest.raises(ValueError, match="tokenize cannot be set"):
        tokenizer.apply_chat_template(chat("a"), tokenize=False)


# --- GGUF -----------------------------------------------------------------------------------------------------------


def test_a_gguf_file_and_a_folder_of_the_same_vocabulary_agree(tmp_path: Path, tokenizer: Tokenizer):
    other = gguf(tmp_path)
    text = "hello hello123 is</s> Ünïcode 世🙂\n\n  x"
    assert other.encode(text) == tokenizer.encode(text)
    assert other.decode(other.encode(text)) == text.replace("</s>", "")
    assert other.apply_chat_template(chat("hello")) == tokenizer.apply_chat_template(chat("hello"))
    assert len(other) == len(tokenizer)
    assert (other.bos_token_id, other.eos_token_id) == (1, 2)


def test_special_ids_that_a_gguf_file_leaves_out_are_none(tmp_path: Path):
    tokenizer = gguf(tmp_path, bos_token_id=None, eos_token_id=None, padding_token_id=None, chat_template=None)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (None, None)
    assert not tokenizer.has_chat_template
    assert len(tokenizer) == len(vocabulary())


def test_the_flags_for_bos_and_eos_are_honoured(tmp_path: Path):
    [hello] = gguf(tmp_path).encode("hello")
    both = gguf(tmp_path, add_bos_token=True, add_eos_token=True)
    assert both.encode("hello") == [1, hello, 2]
    assert both.encode("hello", add_special_tokens=False) == [hello]
    assert gguf(tmp_path, pre="llama-bpe").encode("hello") == [1, hello]
    assert gguf(tmp_path, pre="llama-bpe", add_bos_token=False).encode("hello") == [hello]


def test_user_defined_tokens_are_whole_but_not_special(tmp_path: Path):
    tokens = [*vocabulary(), "<think>", "   "]
    types = [3 if token in SPECIAL else 1 for token in vocabulary()] + [4, 4]
    tokenizer = gguf(tmp_path, tokens=tokens, token_type=types)
    ids = tokenizer.encode("<think>hello   is</s>")
    assert tokenizer.convert_ids_to_tokens(ids) == ["<think>", "hello", "   ", "is", "</s>"]
    assert tokenizer.decode(ids) == "<think>hello   is"


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["hello", "Ġ", "123", "Ġ", "123", "1", "'", "S"]),
        ("smollm", ["hello", "Ġ", "1", "2", "3", "Ġ", "1", "2", "3", "1", "'", "S"]),
        ("starcoder", ["hello", "Ġ", "1", "2", "3", "Ġ", "1", "2", "3", "1", "'", "S"]),
        ("llama-bpe", ["hello", "Ġ", "123", "Ġ", "123", "1", "'", "S"]),
        ("qwen2", ["hello", "Ġ", "1", "2", "3", "Ġ", "1", "2", "3", "1", "'", "S"]),
    ],
)
def test_each_pre_tokenizer_cuts_digits_in_its_own_way(tmp_path: Path, pre: str, pieces: list[str]):
    tokenizer = gguf(tmp_path, pre=pre)
    ids = tokenizer.encode("hello 123 1231'S", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == pieces


def test_qwen2_composes_accents_and_the_others_do_not(tmp_path: Path):
    decomposed = "e\u0301"
    for pre, text in (("qwen2", "é"), ("llama-bpe", decomposed), ("gpt-2", decomposed)):
        tokenizer = gguf(tmp_path, pre=pre)
        assert tokenizer.decode(tokenizer.encode(decomposed)) == text


def test_llama_3_takes_a_piece_that_is_a_token_whole(tmp_path: Path):
    tokens = [*vocabulary(), "Ġworld"]  # no merge makes it
    for pre, count in (("llama-bpe", 1), ("qwen2", 6)):
        tokenizer = gguf(tmp_path, tokens=tokens, pre=pre)
        assert len(tokenizer.encode(" world", add_special_tokens=False)) == count


def test_the_split_patterns_are_those_that_transformers_carries():
    import inspect

    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    llama3 = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    assert llama3 == gguf_tokenizer._LLAMA3_SPLIT
    assert gguf_tokenizer._QWEN2_SPLIT == PRETOKENIZE_REGEX


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": "llama"}, r"tokenizer\.ggml\.model is 'llama'"),
        ({"model": None}, r"tokenizer\.ggml\.model is None"),
        ({"pre": "default"}, r"tokenizer\.ggml\.pre is 'default'.*known are gpt-2"),
        ({"pre": None}, r"tokenizer\.ggml\.pre is None"),
        ({"add_space_prefix": True}, "add_space_prefix"),
        ({"merges": None}, r"no tokenizer\.ggml\.merges"),
        ({"merges": ["h nowhere"]}, "merges do not fit"),
        ({"merges": ["h e", "h"]}, "not two tokens"),
        ({"tokens": [*vocabulary(), "hello"]}, "1 duplicate tokens"),
        ({"eos_token_id": 9999}, "eos_token_id is 9999"),
        ({"add_bos_token": True, "bos_token_id": None}, "add_bos_token is set"),
    ],
)
def test_a_gguf_tokenizer_that_cannot_be_rebuilt_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str):
    with pytest.raises(ValueError, match=complaint) as error:
        gguf(tmp_path, **changes)
    assert "model.gguf" in one_line(error)


def test_a_gguf_file_that_ends_too_early_is_refused_wherever_it_ends(tmp_path: Path):
    whole = write_gguf(tmp_path / "model.gguf").read_bytes()
    end_of_metadata = len(whole.rstrip(b"\0"))
    for size in [*range(4, 200), *range(200, end_of_metadata, 997)]:
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged"):
            load_tokenizer(tmp_path / "cut.gguf")


def test_a_gguf_file_of_another_version_or_byte_order_is_refused(tmp_path: Path):
    whole = write_gguf(tmp_path / "model.gguf").read_bytes()
    for version in (b"\1\0\0\0", b"\0\0\0\3", b"\4\0\0\0"):
        (tmp_path / "other.gguf").write_bytes(whole[:4] + version + whole[8:])
        with pytest.raises(ValueError, match=r"version \d+ is not supported"):
            load_tokenizer(tmp_path / "other.gguf")


# --- the text of a token alone ---------------------------------------------------------------------------------------


class DecodesOnly:
    """A tokenizer of which a stream can ask nothing but the text of some ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(hf_folder(tmp_path_factory.mktemp("byte_level")))


@given(data=st.data(), skip=st.booleans(), as_text=st.booleans())
@settings(max_examples=300)
def test_a_stream_of_pieces_gives_at_each_token_what_a_stream_of_windows_gives(
    byte_level: Tokenizer, data: st.DataObject, skip: bool, as_text: bool
):
    if as_text:
        ids = byte_level.encode(data.draw(st.text(max_size=30)))
    else:
        ids = data.draw(st.lists(st.integers(0, len(byte_level) - 1), max_size=30))
    cut = data.draw(st.integers(0, len(ids)))
    streams = [
        TextStream(decoder, prompt_token_ids=ids[:cut], skip_special_tokens=skip)
        for decoder in (byte_level, DecodesOnly(byte_level))
    ]
    deltas = [[stream.push(index) for index in ids[cut:]] + [stream.finish()] for stream in streams]
    assert deltas[0] == deltas[1]


def test_a_token_has_a_piece_where_its_text_is_its_own(byte_level: Tokenizer):
    pieces = {token: byte_level.piece(index) for index, token in enumerate(vocabulary())}
    assert pieces["Ġhello"] == " hello"
    assert pieces["</s>"] == "" and byte_level.piece(SPECIAL.index("</s>"), skip_special_tokens=False) == "</s>"
    assert pieces["Ã"] is None, "the first byte of a character"
    assert byte_level.piece(len(byte_level)) == "", "an id outside the vocabulary"


def test_no_token_has_a_piece_where_a_decoder_joins_tokens_by_rules_of_its_own():
    backend = RustTokenizer(models.BPE(vocab={"▁a": 0, "b": 1}, merges=[]))
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert tokenizer.decode([0, 0]) == "a a"
    assert tokenizer.piece(0) is None and tokenizer.piece(1) is None


# --- SmolLM2 --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(smollm2_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", GOLDENS["strings"], ids=lambda case: repr(case["text"][:20]))
def test_smollm2_text_has_the_expected_ids_both_ways(smollm2: Tokenizer, case: dict[str, Any]):
    assert smollm2.encode(case["text"]) == case["ids"]
    assert smollm2.decode(case["ids"], skip_special_tokens=False) == case["decoded"]
    assert smollm2.decode(case["ids"]) == case["decoded_without_special"]


@pytest.mark.slow
@pytest.mark.parametrize("case", GOLDENS["strings"], ids=lambda case: repr(case["text"][:20]))
@pytest.mark.parametrize("skip", [True, False])
def test_smollm2_text_streams_as_it_decodes(smollm2: Tokenizer, case: dict[str, Any], skip: bool):
    stream = TextStream(smollm2, skip_special_tokens=skip)
    deltas = [stream.push(index) for index in case["ids"]]
    assert not any("\ufffd" in delta for delta in deltas)
    assert "".join(deltas) + stream.finish() == smollm2.decode(case["ids"], skip_special_tokens=skip)


@pytest.mark.slow
@pytest.mark.parametrize("case", GOLDENS["chats"], ids=range(len(GOLDENS["chats"])))
def test_smollm2_chats_are_laid_out_as_expected(smollm2: Tokenizer, case: dict[str, Any]):
    ids = smollm2.apply_chat_template(case["messages"], add_generation_prompt=case["add_generation_prompt"])
    assert ids == case["ids"]
    assert smollm2.decode(ids, skip_special_tokens=False) == case["text"]


@pytest.mark.slow
def test_smollm2_loads_without_walking_its_strings_in_numpy(smollm2: Tokenizer, smollm2_path: Path):
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        again = load_tokenizer(smollm2_path)
    finally:
        sys.setprofile(before)
    assert len(again) == len(smollm2) == 49152
    assert calls < 10**6  # 0.4 million calls in Python take 0.3 s; gguf's reader alone makes 4.1 million
    assert (smollm2.bos_token_id, smollm2.eos_token_id) == (1, 2)
