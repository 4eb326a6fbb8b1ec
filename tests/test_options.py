"""Options are declared once: flags, docs and configs follow; the paper's baselines and a bounded queue reach a user."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click
import pytest

from jpaged.cli.main import main
from jpaged.cli.option_table import option_table
from jpaged.config.declaration import options_of
from jpaged.config.engine import EngineConfig, resolve
from jpaged.config.options import EngineOptions
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.core.scheduling.presets import POLICIES
from models.families import PRESETS
from tests.engine.tiny import generate, random_prompts, tiny_llm

KINDS = (EngineOptions, SamplingParams, BeamSearchParams)


def test_the_docs_have_the_table_that_the_declarations_give() -> None:
    path = Path(__file__).parents[1] / "docs" / "options.md"
    assert path.read_text() == option_table(), "run python -m jpaged.cli.option_table > docs/options.md"


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_an_option_with_a_line_of_help(kind: Any) -> None:
    options = {option.name: option for option in options_of(kind)}
    assert set(options) == {field.name for field in fields(kind)}
    assert all(option.help.endswith(".") and "\n" not in option.help for option in options.values())


def test_a_flag_has_the_default_the_choices_and_the_help_of_its_declaration() -> None:
    command = main.commands["generate"]
    flags = {each.name: each for each in command.params if isinstance(each, click.Option)}
    for option in (each for kind in KINDS for each in options_of(kind) if each.flag and each.name != "max_tokens"):
        flag = flags[option.name]
        assert flag.help == option.help
        if option.default not in (None, MISSING):
            assert flag.default == option.default
        if isinstance(flag.type, click.Choice):
            assert tuple(flag.type.choices) == option.choices
    assert "record_steps" not in flags


def test_every_option_reaches_the_resolved_config() -> None:
    """But for those that are resolved away: the pool's sizes in bytes, and how the processes meet."""
    config = resolve(EngineOptions("opt-125m", max_model_len=64), PRESETS["opt-125m"])
    parts = (config, config.cache, config.scheduler, config.parallel, config.runtime)
    there = {option.name for part in parts for option in options_of(type(part))}
    away = {"model", "tokenizer", "kv_memory", "swap_space", "coordinator", "process_id"}
    assert there == {option.name for option in options_of(EngineOptions)} - away
    assert isinstance(config, EngineConfig) and config.model_name == "opt-125m"


@pytest.mark.parametrize("policy", ["orca-max", "static"])
def test_the_papers_baselines_run_on_the_device_and_answer_the_same(policy: str) -> None:
    prompts = random_prompts(5, 3, 20)
    fields = {**POLICIES[policy], "max_model_len": 64, "max_num_seqs": 4}
    if policy == "static":
        fields |= {"max_static_batch_len": 64}
    assert generate(tiny_llm(page_size=4, num_pages=80, **fields), prompts) == generate(tiny_llm(), prompts)


def test_a_bounded_queue_is_the_users_to_ask_for() -> None:
    llm = tiny_llm(max_num_waiting=2)
    with pytest.raises(ValueError, match="max_num_waiting=2"):
        llm.generate([[5, 6]] * 3, SamplingParams(max_tokens=2), use_tqdm=False)
