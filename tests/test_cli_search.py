"""The flags of beam search, priorities, policies, swap and page maps: what they do, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest

from jpaged import LLM, BeamSearchParams
from tests.engine.tiny_text import write_text_model
from tests.test_cli import ENGINE, FLAGS, mistake, run, strict


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny checkpoint that reads and writes text."""
    return str(write_text_model(tmp_path_factory.mktemp("cli")))


def test_beam_width_prints_the_hypotheses_of_a_beam_search_the_best_first(model: str):
    params = BeamSearchParams(beam_width=2, max_tokens=6, length_penalty=0.5, early_stopping="never")
    [output] = LLM(model, **ENGINE).beam_search(["hello and"], params, use_tqdm=False)
    flags = ["--beam-width", "2", "--max-tokens", "6", "--length-penalty", "0.5", "--early-stopping", "never"]
    result = run("generate", "hello and", "--model", model, *FLAGS, *flags)
    assert result.exit_code == 0, result.output
    first, second = (beam.text for beam in output.outputs)
    assert result.stdout == f"> hello and (beam 1 of 2)\n{first}\n\n> hello and (beam 2 of 2)\n{second}\n\n"
    document = strict(run("generate", "hello and", "--model", model, *FLAGS, *flags, "--json").stdout)
    [shown] = document["outputs"]
    assert [beam["token_ids"] for beam in shown["outputs"]] == [beam.token_ids for beam in output.outputs]


BEAM_MISTAKES: list[tuple[list[str], str]] = [
    (["--beam-width", "0"], "beam_width=0: must be between 1 and 10"),
    (["--beam-width", "5"], "beam_width=5: at most max_num_seqs=4 sequences run at once"),
    (["--beam-width", "2", "--temperature", "0.5"], "--temperature: a beam search does not sample: leave it out"),
    (["--beam-width", "2", "--n", "2"], "--n: a beam search does not sample"),
    (["--beam-width", "2", "--stop", "x"], "--stop: a beam search does not sample"),
    (["--beam-width", "2", "--length-penalty", "nan"], "length_penalty=nan: must be finite"),
    (["--beam-width", "2", "--early-stopping", "perhaps"], "Invalid value for '--early-stopping'"),
    (["--length-penalty", "2"], "--length-penalty: a beam search's flag: add --beam-width"),
    (["--early-stopping", "true"], "--early-stopping: a beam search's flag: add --beam-width"),
]
ENGINE_MISTAKES: list[tuple[list[str], str]] = [
    (["--num-host-pages", "-1"], "num_host_pages=-1: must be at least 0"),
    (["--swap-space", "lots"], "swap_space='lots'"),
    (["--swap-space", "1MiB", "--num-host-pages", "4"], "num_host_pages and swap_space both size the host pool"),
    (["--preemption-mode", "maybe"], "Invalid value for '--preemption-mode'"),
    (["--scheduling-policy", "lifo"], "Invalid value for '--scheduling-policy'"),
    (["--admission-policy", "best"], "admission_policy='best': use one of in_order, longest_prefix or an import path"),
    (["--victim-policy", "no_such:thing"], "victim_policy='no_such:thing' cannot be imported"),
    (["--eviction-policy", "json:decoder"], "eviction_policy='json:decoder' is not callable"),
    (["--max-overtakes", "-1"], "max_overtakes=-1: must be at least 0"),
    (["--priority", "1"], "with scheduling_policy='fcfs': use an LLM with scheduling_policy='priority'"),
    (["--scheduling-policy", "priority", "--priority", "1", "--priority", "2"], "priority has 2 entries for 1 prompts"),
    (["--page-map", "map.jpeg"], "--page-map map.jpeg: end the name in .png, .svg or .pdf"),
    (["--page-map", "/no/such/map.png"], "--page-map /no/such/map.png: no file can be written there"),
]


@pytest.mark.parametrize(("flags", "message"), BEAM_MISTAKES + ENGINE_MISTAKES)
def test_a_flag_that_is_wrong_or_would_be_ignored_is_refused(model: str, flags: list[str], message: str):
    assert message in mistake("generate", "hello", "--model", model, *FLAGS, *flags)


def test_engine_flags_reach_the_engine_and_a_map_of_its_pages_is_drawn(model: str, tmp_path: Path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "map.png"
    flags = [
        "--page-size", "4", "--num-pages", "12", "--num-host-pages", "12", "--preemption-mode", "swap",
        "--scheduling-policy", "priority", "--priority", "2", "--priority", "1", "--n", "2", "--max-tokens", "16",
        "--ignore-eos", "--page-map", str(target), "--json",
    ]  # fmt: skip
    result = run("generate", "hello and", "the hello", "--model", model, *FLAGS, *flags)
    assert result.exit_code == 0, result.output
    stats: dict[str, Any] = json.loads(result.stdout)["stats"]
    assert stats["host_pages_total"] == 12
    assert stats["num_preemptions_swap"] > 0
    assert target.read_bytes().startswith(b"\x89PNG")
