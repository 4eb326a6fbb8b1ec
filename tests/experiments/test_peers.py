"""The bench beside other engines: equal prompts for all, fair turns, and a table that says what was measured."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from experiments.peers import __main__ as peers
from experiments.peers.environments import CLIENTS, PEERS, Unavailable, prepare
from experiments.peers.rounds import measure, ratios, running, workload_path

FAKE = """
import sys
sys.path.insert(0, {clients!r})
import protocol

def run(jobs):
    return [[{token}] * {count} for _, n in jobs]

protocol.serve(run, {workload!r}, version="1")
"""


def fake(tmp_path: Path, name: str, count: str = "n") -> list[str]:
    """The command of an engine that makes up its tokens."""
    script = tmp_path / f"{name}.py"
    script.write_text(FAKE.format(clients=str(CLIENTS), token=3, count=count, workload=str(workload_path())))
    return [sys.executable, str(script)]


def run_of(tokens: float, ttft: float) -> dict[str, Any]:
    return {"output_tokens_per_second": tokens, "ttft_s": ttft, "first_ids": [1], "load_average": 0.5}


def test_every_client_gets_the_same_prompts() -> None:
    sys.path.insert(0, str(CLIENTS))
    import protocol

    jobs = protocol.jobs_of(str(workload_path()))
    assert len(jobs) == 32
    assert sum(len(prompt) for prompt, _ in jobs) == 4957
    assert sum(count for _, count in jobs) == 2742
    assert jobs == protocol.jobs_of(str(workload_path()))
    assert all(0 <= token < 49152 for prompt, _ in jobs for token in prompt)


def test_engines_take_turns_and_are_measured_in_each_round(tmp_path: Path) -> None:
    commands = {name: fake(tmp_path, name) for name in ("jpaged", "other")}
    said: list[str] = []
    with running(commands, 2, said.append) as clients:
        rounds = measure(clients, 2, said.append)
    assert [sorted(taken) for taken in rounds] == [["jpaged", "other"]] * 2
    assert all(run["output_tokens_per_second"] > 0 and run["ttft_s"] > 0 for taken in rounds for run in taken.values())
    # Another engine is first in the second round.
    turns = [line.split()[2] for line in said if line.startswith("round")]
    assert turns == ["jpaged", "other", "other", "jpaged"]


def test_an_engine_that_makes_too_few_tokens_leaves_the_table_with_its_reason(tmp_path: Path) -> None:
    commands = {"jpaged": fake(tmp_path, "jpaged"), "other": fake(tmp_path, "other", count="(n - 1)")}
    said: list[str] = []
    with running(commands, 2, said.append) as clients:
        table = ratios(measure(clients, 1, said.append))
    assert list(table) == ["jpaged"]
    assert any(line.startswith("other is left out") and "wanted" in line for line in said)


def test_an_engine_that_does_not_start_is_left_out(tmp_path: Path) -> None:
    commands = {"other": [sys.executable, "-c", "raise SystemExit('no such model')"]}
    said: list[str] = []
    with running(commands, 2, said.append) as clients:
        assert not clients
    assert any("no such model" in line for line in said)


def test_a_ratio_compares_runs_of_the_same_round() -> None:
    # The machine is twice as slow in the second round, for both.
    rounds = [
        {"jpaged": run_of(200, 0.1), "other": run_of(100, 0.2)},
        {"jpaged": run_of(100, 0.2), "other": run_of(50, 0.4)},
        {"jpaged": run_of(180, 0.1), "other": run_of(100, 0.1)},
    ]
    table = ratios(rounds)
    assert table["other"]["throughput"] == (2.0, 1.8, 2.0)
    assert table["other"]["ttft"] == (0.5, 0.5, 1.0)
    assert table["jpaged"]["throughput"] == (1.0, 1.0, 1.0)


def test_without_any_peer_the_command_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str, dtype: str, root: Path) -> list[str]:
        if name == "jpaged":
            return fake(tmp_path, name)
        raise Unavailable("no index")

    monkeypatch.setattr(peers, "prepare", nothing)
    result = CliRunner().invoke(peers.main, ["--rounds", "1", "--root", str(tmp_path), "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert "no peer could be started" in result.output
    assert "vllm is left out: no index" in result.output


def test_the_table_and_the_file_say_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "prepare", lambda name, dtype, root: fake(tmp_path, name))
    arguments = ["--peers", "vllm", "--dtypes", "float32", "--rounds", "2", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(peers.main, arguments)
    assert result.exit_code == 0, result.output
    assert "| float32 | vLLM, CPU build 1 |" in result.output
    (written,) = (tmp_path / "out").iterdir()
    assert set(json.loads(written.read_text())["float32"]["table"]) == {"jpaged", "vllm"}


@pytest.mark.parametrize("flag", [["--peers", "vlm"], ["--dtypes", "float16"], ["--peers", ","]])
def test_unknown_names_are_refused_with_the_known_ones(flag: list[str]) -> None:
    result = CliRunner().invoke(peers.main, flag)
    assert result.exit_code == 2
    assert "give names out of" in result.output


def test_our_own_client_needs_no_environment(tmp_path: Path) -> None:
    command = prepare("jpaged", "float32", tmp_path)
    assert command[0] == sys.executable
    assert not list(tmp_path.iterdir())
    assert all((CLIENTS / peer.client).exists() for peer in PEERS.values())
