"""The token ids of the README's commands and Python snippets, with the default model: greedy and seeded ones."""

import json
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from jpaged import LLM, BeamSearchParams, SamplingParams

Answers = dict[str, list[list[int]]]
COMMANDS = {
    "demo": (
        "--chat --temperature 0 --max-tokens 48 --max-model-len 1024",
        "What is the capital of France?",
        "Give me three tips for a good night's sleep.",
        "Explain in two sentences why the sky is blue.",
    ),
    "generate, greedy": ("--temperature 0 --max-tokens 32", "Page tables are"),
    "generate, four samples": ("--n 4 --num-pages 32 --max-model-len 128", "Once upon a time"),
    "generate, four samples of seed 7": ("--n 4 --seed 7 --num-pages 32 --max-model-len 128", "Once upon a time"),
    "generate, beams": ("--beam-width 4 --max-tokens 32", "The three primary colours are"),
}

# The answers that are drawn: where two tokens are close, the machine's last bits decide.
SAMPLED = ("generate, four samples", "generate, four samples of seed 7", "snippet, four of seed 7", "snippet, chat")


def answers() -> Answers:
    """The ids of each sequence, by what was asked; takes a minute or two."""
    return {name: command(*parts) for name, parts in COMMANDS.items()} | snippets()


def command(options: str, *prompts: str) -> list[list[int]]:
    """What `jpaged generate` gives, through the console script's own function."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["jpaged"].partition(":")
    program = getattr(import_module(module), function)
    done = CliRunner().invoke(program, ["generate", *options.split(), "--json", *prompts], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return ids(json.loads(done.stdout)["outputs"])


def snippets() -> Answers:
    """What the snippets print, in their order: a request's own seed depends on how many came before it."""
    llm = LLM("smollm2-135m", page_size=16, kv_memory="256MiB")
    greedy = SamplingParams(temperature=0, max_tokens=16)
    four = SamplingParams(n=4, temperature=0.8, seed=7, max_tokens=16)
    question = [{"role": "user", "content": "What is a page table?"}]
    quiet: dict[str, Any] = {"use_tqdm": False}
    found = {
        "snippet, two prompts": ids(llm.generate(["The capital of France is", "Once upon a time"], greedy, **quiet)),
        "snippet, four of seed 7": ids(llm.generate("Once upon a time", four, **quiet)),
        "snippet, beams": ids(
            llm.beam_search("The three primary colours are", BeamSearchParams(beam_width=4, max_tokens=8), **quiet)
        ),
        "snippet, chat": ids(llm.chat(question, SamplingParams(max_tokens=16), **quiet)),
        "snippet, stream": [
            [
                token
                for delta in llm.stream("One, two, three,", SamplingParams(temperature=0, max_tokens=8))
                for token in delta.token_ids
            ]
        ],
    }
    held = llm.pin_prefix("system", "You are a careful assistant. Answer in one sentence. Say so if you do not know.")
    return found | {"snippet, tokens of the pinned prefix": [[held]]}


def ids(outputs: Any) -> list[list[int]]:
    """The ids of each sequence of each output, whether objects or JSON."""
    if isinstance(outputs[0], dict):
        return [sequence["token_ids"] for output in outputs for sequence in output["outputs"]]
    return [list(sequence.token_ids) for output in outputs for sequence in output.outputs]
