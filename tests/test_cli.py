"""The `jpaged` program: what it prints, and that a user's mistake ends it with one line, exit code 2, no stdout."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jpaged import LLM, SamplingParams
from jpaged.cli.main import main
from tests.engine.tiny import TINY_LLAMA
from tests.engine.tiny_text import write_text_model

ENGINE = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 48}
FLAGS = [part for name, value in ENGINE.items() for part in (f"--{name.replace('_', '-')}", str(value))]
PROGRAM = [sys.executable, "-c", "from jpaged.cli.main import main; main(prog_name='jpaged')"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny checkpoint that reads and writes text, with a chat template."""
    return str(write_text_model(tmp_path_factory.mktemp("cli")))


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def mistake(*args: str) -> str:
    """The one line with which the program leaves."""
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def strict(text: str) -> Any:
    """The JSON document; NaN and infinities are not JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    return json.loads(text, parse_constant=refuse)


# --- generate ---------------------------------------------------------------------------------------------------------


def test_generate_prints_the_text_of_each_prompt_under_its_heading(model: str):
    llm = LLM(model, **ENGINE)
    outputs = llm.generate(["hello and", "the"], SamplingParams(temperature=0.0, max_tokens=8), use_tqdm=False)
    result = run("generate", "hello and", "the", "--model", model, *FLAGS, "--temperature", "0", "--max-tokens", "8")
    assert result.exit_code == 0
    first, second = (output.outputs[0].text for output in outputs)
    assert result.stdout == f"> hello and\n{first}\n\n> the\n{second}\n\n"
    assert result.stderr == ""


def test_generate_shows_samples_one_after_another_and_a_summary_on_request(model: str):
    result = run("generate", "hello", "the", "--model", model, *FLAGS, "--n", "2", "--max-tokens", "6", "--stats")
    assert result.exit_code == 0
    headings = [line for line in result.stdout.splitlines() if line.startswith("> ")]
    assert headings == [
        "> hello (sample 1 of 2)", "> hello (sample 2 of 2)", "> the (sample 1 of 2)", "> the (sample 2 of 2)",
    ]  # fmt: skip
    summary = result.stdout.splitlines()[-6:]
    assert "tokens/s" in summary[0]
    assert summary[1].startswith("medians, compiling included: queue ")
    assert "programs compiled; attention: xla" in summary[2]
    assert summary[3] == "preemptions: 0 recomputed, 0 swapped (0 pages out, 0 in)"
    assert summary[4].startswith("sharing saved ")
    assert summary[5].startswith("pages of 16 tokens: ")


def test_g14_generate_prints_one_strict_json_document(model: str):
    flags = ["--json", "--logprobs", "5", "--top-k", "1", "--max-tokens", "4", "--ignore-eos"]
    result = run("-v", "generate", "hello and", "the", "--model", model, *FLAGS, *flags)
    assert result.exit_code == 0
    document = strict(result.stdout)
    assert set(document) == {"outputs", "stats"}
    assert [output["prompt"] for output in document["outputs"]] == ["hello and", "the"]
    for output in document["outputs"]:
        assert {"request_id", "prompt_token_ids", "outputs", "finished", "metrics"} <= set(output)
        [completion] = output["outputs"]
        assert len(completion["token_ids"]) == len(completion["logprobs"]) == 4
        assert completion["finish_reason"] == "length"
        assert isinstance(completion["text"], str)
        for token, entry in zip(completion["token_ids"], completion["logprobs"], strict=True):
            assert len(entry) == 5
            assert entry[str(token)]["rank"] == 1
        chosen = zip(completion["token_ids"], completion["logprobs"], strict=True)
        assert completion["cumulative_logprob"] == pytest.approx(sum(e[str(t)]["logprob"] for t, e in chosen))
    assert {"num_steps", "pages_total", "pages_free", "compiled_programs", "host_ms_per_step"} <= set(document["stats"])


def test_chat_lays_a_prompt_out_with_the_template_and_is_refused_without_one(model: str, tmp_path: Path):
    flags = ["--max-tokens", "3", "--json", "--chat"]
    [output] = strict(run("generate", "hello", "--model", model, *FLAGS, *flags).stdout)["outputs"]
    assert output["prompt_token_ids"][0] == 1
    assert len(output["prompt_token_ids"]) > 4
    plain = str(write_text_model(tmp_path, template=None))
    assert "no chat template" in mistake("generate", "hello", "--model", plain, *FLAGS, "--chat")


def test_a_file_has_one_prompt_a_line_whatever_wrote_it(model: str, tmp_path: Path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffhello and\r\n\r\nthe\u2028hello\x0cand\nthe".encode())
    result = run(
        "generate", "--prompts-file", str(path), "--model", model, *FLAGS, "--max-tokens", "1", "--json"
    )  # fmt: skip
    prompts = [output["prompt"] for output in strict(result.stdout)["outputs"]]
    assert prompts == ["hello and", "the\u2028hello\x0cand", "the"]


# --- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES: list[tuple[list[str], str]] = [
    ([], "no prompt: give one as an argument, or several, or --prompts-file"),
    ([""], "prompts[0] is empty: give at least one character"),
    (["hello", ""], "prompts[1] is empty"),
    (["the " * 80], "with max_model_len=48 at most 47 leave room for one output token"),
    (["hello", "--prompts-file", "x"], "not both"),
    (["--prompts-file", "/no/such"], "--prompts-file /no/such: No such file or directory; check the path"),
    (["hello", "--logprobs", "3"], "logprobs=3: shown with --json alone; add --json"),
    (["hello", "--json", "--logprobs", "99"], "logprobs=99: must be between 0 and 20"),
    (["hello", "--temperature", "nan"], "temperature=nan: must be finite"),
    (["hello", "--temperature", "warm"], "Invalid value for '--temperature'"),
    (["hello", "--top-p", "0"], "top_p=0: must be above 0"),
    (["hello", "--top-k", "-2"], "top_k=-2: must be at least -1"),
    (["hello", "--n", "0"], "n=0: must be between 1 and 16384"),
    (["hello", "--n", "5"], "n=5: at most max_num_seqs=4 sequences run at once; lower n"),
    (["hello", "--n", "2", "--temperature", "0"], "n=2 with temperature=0.0"),
    (["hello", "--max-tokens", "0"], "max_tokens=0: must be at least 1"),
    (["hello", "--stop", ""], "every entry must be a string that is not empty"),
    (["hello", "--num-pages", "0"], "num_pages=0: must be at least 1"),
    (["hello", "--num-pages", "2"], "num_pages=2: pages of 16 tokens hold 32 tokens"),
    (["hello", "--kv-memory", "lots"], "kv_memory='lots': give bytes"),
    (["hello", "--kv-memory", "1KiB"], "kv_memory='1KiB' is too little"),
    (["hello", "--page-size", "257"], "page_size=257: must be between 1 and 256"),
    (["hello", "--max-model-len", "65"], "has positions for 64 tokens; give at most 64"),
    (["hello", "--max-num-batched-tokens", "2"], "max_num_batched_tokens=2: must be at least max_num_seqs=4"),
    (["hello", "--dtype", "float8"], "Invalid value for '--dtype'"),
    (["hello", "--attention-implementation", "triton"], "attention_implementation='triton' is a GPU kernel"),
    (["hello", "--attention-implementation", "mosaic_gpu"], "attention_implementation='mosaic_gpu'"),
    (["hello", "--tensor-parallel-size", "2"], "tensor_parallel_size=2: JAX sees 1 cpu device(s); use at most 1"),
    (["hello", "--model", "/no/such"], "model='/no/such' is not an existing file or folder"),
    (["hello", "--model", TINY_LLAMA], "this model has no tokenizer: give token ids, or pass tokenizer="),
    (["hello", "--frob"], "No such option '--frob'"),
    (["hello", "--seed"], "(see jpaged generate --help)"),
]


@pytest.mark.parametrize(("args", "said"), MISTAKES, ids=[" ".join(args)[:40] for args, _ in MISTAKES])
def test_a_mistake_is_one_line_on_stderr(model: str, args: list[str], said: str):
    assert said in mistake("generate", "--model", model, *FLAGS, *args)


def test_mistakes_before_the_command_are_one_line_too():
    assert "No such command 'frob'" in mistake("frob")
    assert "No such option '--frob'" in mistake("--frob", "generate")
    assert "No such command 'frob'" in mistake("bench", "frob")


def test_a_prompts_file_that_is_empty_or_no_text_is_named(model: str, tmp_path: Path):
    path = tmp_path / "prompts.txt"
    for content, said in ((b"", "no prompt in it"), (b"\n\n", "no prompt in it"), (b"a\xff\xfe", "not UTF-8")):
        path.write_bytes(content)
        line = mistake("generate", "--prompts-file", str(path), "--model", model)
        assert str(path) in line
        assert said in line
    assert "Is a directory" in mistake("generate", "--prompts-file", str(tmp_path), "--model", model)


def test_with_json_a_mistake_leaves_stdout_empty(model: str):
    mistake("generate", "hello", "--json", "--n", "9", "--model", model, *FLAGS)


def test_without_arguments_there_is_help():
    for args in ([], ["bench"]):
        result = run(*args)
        assert result.exit_code == 2
        assert "Commands:" in result.output
    for args in (["--help"], ["generate", "-h"], ["bench", "throughput", "--help"], ["models", "--help"]):
        result = run(*args)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "Usage: jpaged" in result.stdout


# --- models -----------------------------------------------------------------------------------------------------------


def test_models_lists_names_shapes_and_architectures():
    document = strict(run("models", "--json").stdout)
    assert set(document) == {"models", "presets", "architectures"}
    assert "smollm2-135m" in [entry["name"] for entry in document["models"]]
    assert "LlamaForCausalLM" in document["architectures"]
    text = run("models").stdout
    assert all(entry["name"] in text for entry in document["models"] + document["presets"])
    assert all(name in text for name in document["architectures"])


# --- as a process -----------------------------------------------------------------------------------------------------


def test_the_process_leaves_with_the_exit_code_and_no_traceback():
    for args, code, said in (
        (["models"], 0, ""),
        (["--version"], 0, ""),
        (["generate", "hello", "--model", "/no/such"], 2, "Error: model='/no/such' is not an existing"),
        (["bench", "latency", "--num-iters", "0"], 2, "Error: Invalid value for '--num-iters': 0 is not"),
    ):
        result = subprocess.run([*PROGRAM, *args], capture_output=True, text=True)
        assert result.returncode == code
        assert (result.stdout == "") == (code == 2)
        assert result.stderr.startswith(said)
        assert result.stderr.count("\n") == (1 if said else 0)


def test_a_reader_that_has_gone_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run([*PROGRAM, "models"], stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert result.returncode == 1
    assert result.stderr == ""


@pytest.mark.slow
def test_ctrl_c_is_no_traceback(model: str):
    args = [*PROGRAM, "bench", "latency", "--model", model, *FLAGS, "--input-len", "4", "--output-len", "4"]
    # A child inherits an ignored SIGINT, and whoever runs these tests may ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen([*args, "--num-iters", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    seen = b""
    while b"2/1000010" not in seen:
        piece = process.stderr.read1(4096)
        assert piece, seen
        seen += piece
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"Aborted!" in rest
    assert b"Traceback" not in rest
