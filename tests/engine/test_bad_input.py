"""What a user gets wrong is refused in one line with the remedy, before anything runs, and harms nobody else."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jpaged import LLM, QueueFull, RequestRefused, SamplingParams
from tests.engine.tiny import GREEDY, TINY_LLAMA, generate, tiny_llm
from tests.engine.tiny_text import write_text_model

PROMPT = [5, 17, 40, 8, 61]


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The one line with which the call is refused."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the callers match the whole message
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    assert 10 < len(message) < 500
    return message


PROMPTS: list[tuple[Any, str]] = [
    ("", "prompts[0] is empty: give at least one character"),
    ([], "prompts is empty: give at least one prompt"),
    ([[]], "prompts[0] is empty: give at least one token"),
    ([""], "prompts[0] is empty"),
    ([PROMPT, []], "prompts[1] is empty"),
    ({"prompt_token_ids": []}, "prompts[0] is empty"),
    ({"prompt": ""}, "prompts[0] is empty"),
    ([1, [2]], "prompts[0]=1: give text or a list of token ids"),
    ([[1], [2, [3]]], "prompts[1] has [3] among its token ids: ids are integers"),
    ([[1, "a"]], "prompts[0] has 'a' among its token ids"),
    ([1, "a"], "prompts[0]=1: give text or a list"),
    ([[1.0]], "prompts[0] has 1.0 among its token ids"),
    ([[float("nan")]], "prompts[0] has nan among its token ids"),
    ([1, True], "prompts[0] has True among its token ids"),
    ([[None]], "prompts[0] has None among its token ids"),
    (None, "prompts=None: give text, a list of token ids, or a list of either"),
    (5, "prompts=5: give text"),
    (b"hello", "prompts=b'hello': give text"),
    ([bytearray(b"a")], "prompts[0]=bytearray(b'a'): give text or a list"),
    ({1, 2}, "prompts={1, 2}: give text"),
    (iter([[1]]), "give text, a list of token ids, or a list of either"),
    (np.array([1, 2]), "prompts=array([1, 2]): give text"),
    ([np.array([1, 2])], "prompts[0]=array([1, 2]): give text or a list"),
    ({}, "prompts[0] has the keys []: give either prompt or prompt_token_ids"),
    ({"prompt": "a", "prompt_token_ids": [1]}, "prompts[0] has the keys ['prompt', 'prompt_token_ids']"),
    ({"prompt_token_ids": "abc"}, "prompts[0]: prompt_token_ids is text; pass it as 'prompt'"),
    ({"prompt_token_ids": [[1]]}, "prompts[0] has [1] among its token ids"),
    ("lone \ud800 surrogate", "text is not Unicode: a lone surrogate at character 5"),
    ([-1], "prompt_token_ids has the id -1: the model's ids are 0 to 96"),
    ([97], "prompt_token_ids has the id 97: the model's ids are 0 to 96"),
    ([2**40], "prompt_token_ids has the id 1099511627776: the model's ids are 0 to 96"),
    ([PROMPT, [97]], "prompts[1]: prompt_token_ids has the id 97"),
    ([1] * 64, "the prompt has 64 tokens: with max_model_len=64 at most 63 leave room"),
    ([1] * 500, "the prompt has 500 tokens"),
    ([PROMPT, [1] * 64], "prompts[1]: the prompt has 64 tokens"),
]


@pytest.mark.parametrize(("prompts", "said"), PROMPTS, ids=[said[:40] for _, said in PROMPTS])
def test_a_prompt_that_is_none_is_refused_by_its_place(llm: LLM, prompts: Any, said: str):
    before = llm.stats()["num_steps"]
    assert said in refusal(llm.generate, prompts, GREEDY)
    assert said in refusal(llm.stream, prompts, GREEDY)
    assert llm.stats()["num_steps"] == before


PARAMS: list[tuple[Any, str]] = [
    ([GREEDY], "sampling_params has 1 entries for 2 prompts: give one, or one each"),
    ([], "sampling_params has 0 entries for 2 prompts"),
    ([GREEDY] * 3, "sampling_params has 3 entries for 2 prompts"),
    ({"n": 1}, "sampling_params={'n': 1}: give a SamplingParams or a list of them"),
    ([GREEDY, None], "give a SamplingParams or a list of them"),
    ("greedy", "sampling_params='greedy': give a SamplingParams"),
    (SamplingParams(n=9), "n=9: at most max_num_seqs=8 sequences run at once; lower n"),
    (SamplingParams(logit_bias={97: 1.0}), "logit_bias has the id 97: the model's ids are 0 to 96"),
    (SamplingParams(stop_token_ids=[10**6]), "stop_token_ids has the id 1000000: the model's ids are 0 to 96"),
    ([GREEDY, SamplingParams(n=9)], "prompts[1]: n=9"),
]


@pytest.mark.parametrize(("params", "said"), PARAMS, ids=[said[:40] for _, said in PARAMS])
def test_params_that_do_not_fit_are_refused_and_nothing_starts(llm: LLM, params: Any, said: str):
    before = llm.stats()["num_steps"]
    assert said in refusal(llm.generate, [PROMPT, PROMPT], params)
    assert llm.stats()["num_steps"] == before


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("temperature", float("nan"), "must be finite"),
        ("top_p", float("inf"), "must be finite"),
        ("min_p", float("-inf"), "must be finite"),
        ("repetition_penalty", float("nan"), "must be finite"),
        ("presence_penalty", 10**400, "must be finite"),
        ("temperature", True, "must be a number"),
        ("temperature", "0.5", "must be a number"),
        ("top_p", 0, "for greedy decoding set temperature=0"),
        ("top_k", -2, "must be at least -1"),
        ("n", 0, "must be at least 1"),
        ("n", 1.5, "must be an integer"),
        ("max_tokens", 0, "must be at least 1"),
        ("min_tokens", 17, "must be at most max_tokens=16"),
        ("logprobs", "5", "must be an integer"),
        ("seed", 2**63, "must be at most 9223372036854775807"),
        ("stop", [1], "must be a string that is not empty"),
        ("logit_bias", {"5": 1.0}, "must be an integer"),
        ("ignore_eos", "no", "use True or False"),
    ],
)
def test_a_bad_parameter_names_itself_its_value_and_the_remedy(field: str, value: Any, said: str):
    message = refusal(SamplingParams, **{field: value})
    assert field in message
    assert said in message


MODEL_LENGTH = [(62, 1, 1), (63, 1, 1), (63, 5, 1), (60, 16, 4), (40, None, 24)]


@pytest.mark.parametrize(("prompt_len", "max_tokens", "made"), MODEL_LENGTH)
def test_a_prompt_may_leave_room_for_a_single_token(llm: LLM, prompt_len: int, max_tokens: int | None, made: int):
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    [output] = llm.generate([[7] * prompt_len], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == made
    assert output.outputs[0].finish_reason == "length"


def test_a_bad_prompt_in_a_list_starts_none_of_them(llm: LLM):
    before = llm.stats()
    refusal(llm.generate, [PROMPT, PROMPT, [1] * 64], GREEDY)
    assert not llm.engine.has_unfinished
    after = llm.stats()
    assert after["num_steps"] == before["num_steps"]
    assert after["num_requests_refused"] == before["num_requests_refused"] + 1


def test_refused_calls_leave_a_half_way_stream_and_later_calls_as_they_were(llm: LLM):
    want = generate(llm, [PROMPT])[0][0]
    stream = llm.stream([PROMPT], GREEDY)
    got = [next(stream) for _ in range(4)]
    for prompts, _ in PROMPTS:
        refusal(llm.generate, prompts, GREEDY)
    for params, _ in PARAMS:
        refusal(llm.generate, [PROMPT, PROMPT], params)
    got += [next(stream)]
    assert generate_while_running(llm) == want
    got += list(stream)
    assert [token for delta in got for token in delta.token_ids] == want
    assert [delta.finish_reason for delta in got] == [None] * (len(want) - 1) + ["length"]


def generate_while_running(llm: LLM) -> list[int]:
    return llm.generate([PROMPT], GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def test_an_unseeded_request_draws_the_same_after_a_refused_call(text_model: Path):
    params = SamplingParams(temperature=1.0, max_tokens=6, ignore_eos=True)
    answers = []
    for refused in (False, True):
        llm = tiny_llm(str(text_model), num_pages=40, page_size=4, seed=3)
        if refused:
            refusal(llm.generate, [PROMPT, [97]], params)
        answers.append(generate(llm, [PROMPT], params))
    assert answers[0] == answers[1]


def test_a_full_queue_refuses_the_whole_call_and_takes_it_later(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(llm.engine, "limits", dataclasses.replace(llm.engine.limits, max_num_waiting=2))
    with pytest.raises(RequestRefused, match=r"prompts\[2\]: 3 sequences in one call: at most max_num_waiting=2"):
        llm.generate([PROMPT] * 3, GREEDY)
    stream = llm.stream([PROMPT], GREEDY)
    with pytest.raises(QueueFull, match="1 sequences wait already: at most max_num_waiting=2 may; try again later"):
        llm.generate([PROMPT, PROMPT], GREEDY)
    next(stream)
    assert len(llm.generate([PROMPT, PROMPT], GREEDY, use_tqdm=False)) == 2
    stream.close()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_step_that_fails_ends_all_requests_and_the_engine_serves_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
):
    want = generate(llm, [PROMPT])
    stream = llm.stream([PROMPT, [9, 9]], GREEDY)
    for _ in range(3):
        next(stream)
    with monkeypatch.context() as patch:

        def fail(plan: Any) -> Any:
            raise error("the device is gone")

        patch.setattr(llm.engine.executor, "submit", fail)
        with pytest.raises(error, match="the device is gone"):
            llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert not llm.engine.has_unfinished
    # The other caller's stream hears of it, instead of waiting for ever.
    last = list(stream)
    assert [(delta.prompt_index, delta.finish_reason) for delta in last if delta.finish_reason] == [
        (0, "abort"),
        (1, "abort"),
    ]
    assert generate(llm, [PROMPT]) == want


def test_an_exception_in_a_callers_loop_gives_the_pages_back(llm: LLM):
    def consume() -> None:
        for i, _ in enumerate(llm.stream([PROMPT, PROMPT], GREEDY)):
            if i == 3:
                raise LookupError

    with contextlib.suppress(LookupError):
        consume()
    assert not llm.engine.has_unfinished


ENGINES: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model=5: must be a name"),
    ({"model": None}, "model=None: must be a name"),
    ({"model": ""}, "model='': must be a name"),
    ({"model": "/no/such"}, "model='/no/such' is not an existing file or folder; check the path"),
    ({"model": "opt-13b"}, "pass load_format='dummy' for random weights"),
    ({"model": "opt-175b", "load_format": "dummy"}, "its weights take 650.5 GiB in float32"),
    ({"model": TINY_LLAMA + "/config.json"}, "name the checkpoint's folder instead"),
    ({"foo": 1}, "LLM() got an unexpected keyword argument 'foo'; see help(LLM)"),
    ({"num_pages": 0}, "num_pages=0: must be at least 1"),
    ({"num_pages": -1}, "num_pages=-1: must be at least 1"),
    ({"num_pages": True}, "num_pages=True: must be an integer"),
    ({"num_pages": 1, "page_size": 1}, "num_pages=1: pages of 1 tokens hold 1 tokens"),
    ({"num_pages": 3, "max_model_len": 64}, "give num_pages of at least 4 or max_model_len of at most 48"),
    ({"num_pages": 10**9}, "lower num_pages or page_size"),
    ({"kv_memory": "1KiB"}, "kv_memory='1KiB' is too little: one page takes 9 KiB"),
    ({"kv_memory": "lots"}, "kv_memory='lots': give bytes, or a text such as '512MiB' or '2GB'"),
    ({"kv_memory": "9" * 400 + "T"}, "give bytes, or a text such as '512MiB'"),
    ({"kv_memory": float("nan")}, "kv_memory=nan: give bytes"),
    ({"kv_memory": "900TB"}, "kv_memory='900TB': only"),
    ({"kv_memory": 0}, "kv_memory=0: must be at least one byte"),
    ({"kv_memory": -5}, "kv_memory=-5: must be at least one byte"),
    ({"kv_memory": "1MiB", "num_pages": 4}, "num_pages=4 and kv_memory='1MiB' both size the pool; give one"),
    ({"kv_memory": "32KiB", "max_model_len": 64}, "the pool (kv_memory=32KiB) holds 32 tokens, less than"),
    ({"page_size": 0}, "page_size=0: must be between 1 and 256"),
    ({"page_size": 257}, "page_size=257: must be between 1 and 256"),
    ({"max_model_len": 65}, "has positions for 64 tokens; give at most 64"),
    ({"max_model_len": 1}, "max_model_len=1: must be at least 2"),
    ({"max_num_batched_tokens": 8}, "max_num_batched_tokens=8: must be at least max_num_seqs=16"),
    ({"max_num_seqs": 0}, "max_num_seqs=0: must be between 1 and 4096"),
    ({"dtype": "float8"}, "dtype='float8': choose one of float32, bfloat16, float16"),
    ({"kv_cache_dtype": "int3"}, "kv_cache_dtype='int3': choose one of auto"),
    ({"attention_implementation": "flash"}, "attention_implementation='flash'"),
    ({"attention_implementation": "mosaic_gpu"}, "attention_implementation='mosaic_gpu'"),
    ({"attention_implementation": "triton"}, "attention_implementation='triton' is a GPU kernel"),
    ({"tensor_parallel_size": 2}, "tensor_parallel_size=2: JAX sees 1 cpu device(s); use at most 1"),
    (
        {"tensor_parallel_size": 3},
        "tensor_parallel_size=3: 4 heads, 2 kv heads and an ffn of 56 do not divide into 3 equal",
    ),
    ({"parallel_style": "gspmd"}, "parallel_style='gspmd': choose one of shard_map, pjit"),
    ({"num_processes": 2}, "num_processes=2: only with coordinator='HOST:PORT' or 'auto'; give that too"),
    (
        {"coordinator": "h:1", "num_processes": 2, "process_id": 0},
        "num_processes=2: tensor_parallel_size=1 is shared out",
    ),
    ({"seed": -1}, "seed=-1: must be between 0 and"),
    ({"scan_unroll": "all"}, "scan_unroll='all'"),
    ({"load_format": "pickle"}, "load_format='pickle' does not exist; use one of auto"),
    ({"tokenizer": "/no/such"}, "tokenizer path '/no/such' does not exist"),
    ({"tokenizer": TINY_LLAMA}, "has no tokenizer files"),
    ({"tokenizer": 5}, "tokenizer=5: must be a name"),
    ({"watermark": float("nan")}, "watermark=nan: must be a fraction"),
]


@pytest.mark.parametrize(("options", "said"), ENGINES, ids=[str(options)[:60] for options, _ in ENGINES])
def test_a_bad_engine_option_is_refused_by_name(options: dict[str, Any], said: str):
    assert said in refusal(lambda: LLM(**{"model": TINY_LLAMA, **options}))


def test_an_unknown_model_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refusal(LLM, "no-such/model")
    assert "model='no-such/model' is no local path or catalog name (smollm2-135m)" in message


def test_a_damaged_tokenizer_is_refused_in_one_line(text_model: Path, tmp_path: Path):
    shutil.copytree(text_model, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").write_text("{")
    message = refusal(LLM, str(tmp_path))
    assert "its tokenizer cannot be loaded" in message or "no vocabulary" in message
    assert str(tmp_path) in message


def test_a_chat_template_that_complains_in_several_lines_is_quoted_in_one(llm: LLM):
    template = "{{ raise_exception('first\nsecond') }}"
    said = refusal(llm.chat, [{"role": "user", "content": "hello"}], GREEDY, chat_template=template)
    assert said == "chat template: first second"
    broken = refusal(llm.chat, [{"role": "user", "content": "hello"}], GREEDY, chat_template="{% if %}")
    assert broken.startswith("chat template: ")


CONFIGS: list[tuple[Any, str]] = [
    ("{", "cannot read"),
    ("[]", "expected a JSON object, got list"),
    ({"architectures": ["GPT9ForCausalLM"]}, "GPT9ForCausalLM"),
    ({"vocab_size": "many"}, "vocab_size"),
    ({"num_attention_heads": 0}, "num_heads=0"),
    ({"num_key_value_heads": 3}, "num_kv_heads=3"),
    ({"intermediate_size": 57}, "expected"),
    ({"num_hidden_layers": 4}, "missing"),
    ({"num_hidden_layers": -1}, "num_"),
]


@pytest.mark.parametrize(("changes", "said"), CONFIGS, ids=[str(changes)[:50] for changes, _ in CONFIGS])
def test_a_wrong_config_is_refused_in_one_line(tmp_path: Path, changes: Any, said: str):
    shutil.copytree(TINY_LLAMA, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    path.write_text(changes if isinstance(changes, str) else json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - matched below; a list of tensors may be long
        LLM(str(tmp_path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["empty", "half", "header", "noise"])
def test_damaged_weights_are_refused_in_one_line(tmp_path: Path, damage: str):
    shutil.copytree(TINY_LLAMA, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    pieces = {"empty": b"", "half": whole[: len(whole) // 2], "header": whole[:20], "noise": b"\xff" * 4096}
    path.write_bytes(pieces[damage])
    assert "damaged or was not fully downloaded" in refusal(LLM, str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04" * 64, b"GGUF\x03\x00\x00\x00" + b"\xff" * 64])
def test_damaged_gguf_files_are_refused_in_one_line(tmp_path: Path, content: bytes):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert "damaged or not fully downloaded" in refusal(LLM, path)


MESSAGES: list[tuple[Any, str]] = [
    ([], "give a list of {'role': ..., 'content': ...}"),
    (None, "messages=None: give a list"),
    (5, "messages=5: give a list"),
    ("hello", "messages='hello': give a list"),
    (iter([]), "give a list of"),
    ([5], "messages must be a list, not empty"),
    ([[]], "messages must be a list, not empty"),
    ([{"role": "user"}], "messages[0] (user) has no content: give a string"),
    ([{"content": "hello"}], "messages[0].role is None: give one of system"),
    ([{"role": "wizard", "content": "hello"}], "messages[0].role is 'wizard'"),
    ([{"role": "user", "content": 5}], "messages[0].content must be a string or a list of text parts"),
    ([{"role": "user", "content": [{"type": "image"}]}], "only 'text' parts are supported"),
    ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "chat template: roles must alternate"),
]


@pytest.mark.parametrize(("messages", "said"), MESSAGES, ids=[said[:50] for _, said in MESSAGES])
def test_malformed_messages_are_refused(llm: LLM, messages: Any, said: str):
    assert said in refusal(llm.chat, messages, GREEDY)


def test_content_may_come_in_parts_and_bos_is_not_doubled(llm: LLM):
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    [output] = llm.chat(parts, GREEDY, use_tqdm=False)
    [same] = llm.chat([{"role": "user", "content": "hello"}], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == same.prompt_token_ids
    assert output.prompt_token_ids.count(1) == 1


def test_text_and_chat_need_a_tokenizer_and_a_template(tmp_path: Path):
    llm = tiny_llm(num_pages=16)
    assert "this model has no tokenizer: give token ids, or pass tokenizer=" in refusal(llm.generate, "hello")
    assert "no tokenizer, so no chat template" in refusal(llm.chat, [{"role": "user", "content": "hello"}])
    assert "use stop_token_ids" in refusal(llm.generate, PROMPT, SamplingParams(stop="a"))
    plain = tiny_llm(str(write_text_model(tmp_path, template=None)), num_pages=16)
    assert "no chat template" in refusal(plain.chat, [{"role": "user", "content": "hello"}])
