"""Hugging Face transformers on the CPU: padded static batches of 16, or its continuous batching.

Usage: transformers_client.py FOLDER WORKLOAD.csv DTYPE THREADS static|continuous
"""

import sys

import torch
import transformers
from protocol import Job, serve
from transformers import AutoModelForCausalLM, GenerationConfig

BATCH = 16


def config(count: int) -> GenerationConfig:
    """Greedy, exactly `count` tokens."""
    return GenerationConfig(
        max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None, use_cache=True
    )


@torch.inference_mode()
def static(model: torch.nn.Module, jobs: list[Job]) -> list[list[int]]:
    """Batches in order, padded to the left, each run to its longest output; the tokens beyond are dropped."""
    outputs: list[list[int]] = []
    for i in range(0, len(jobs), BATCH):
        batch = jobs[i : i + BATCH]
        width, longest = max(len(prompt) for prompt, _ in batch), max(count for _, count in batch)
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
        made = model.generate(input_ids=ids, attention_mask=mask, generation_config=config(longest))
        outputs += [row[width : width + count].tolist() for row, (_, count) in zip(made, batch, strict=True)]
    return outputs


def continuous(manager: object, jobs: list[Job]) -> list[list[int]]:
    """All requests to the manager, and their results as they come."""
    names = [manager.add_request(prompt, max_new_tokens=count, eos_token_id=-1) for prompt, count in jobs]
    made: dict[str, list[int]] = {}
    while len(made) < len(names):
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise SystemExit("continuous batching has stopped")
        elif result.is_finished():
            made[result.request_id] = result.generated_tokens
    return [made[name] for name in names]


def main(folder: str, workload: str, dtype: str, threads: str, mode: str) -> None:
    """Serve."""
    torch.set_num_threads(int(threads))
    transformers.utils.logging.set_verbosity_error()
    kind = getattr(torch, dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, attn_implementation="sdpa").eval()
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    facts = {"version": transformers.__version__, "threads": int(threads), "mode": mode}
    if mode == "static":
        serve(lambda jobs: static(model, jobs), workload, **facts)
        return
    batching = transformers.ContinuousBatchingConfig(max_batch_tokens=512, num_blocks=96)
    context = model.continuous_batching_context_manager(config(1), continuous_batching_config=batching)
    with context as manager:
        serve(lambda jobs: continuous(manager, jobs), workload, **facts)


if __name__ == "__main__":
    main(*sys.argv[1:])
