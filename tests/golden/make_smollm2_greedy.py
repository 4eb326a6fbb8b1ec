"""Write smollm2_greedy.json: greedy continuations of SmolLM2-135M-Instruct by Hugging Face transformers, in float32.

Prompts are the lines of prompts.txt, cut to 64 tokens; ids and top-two margins come from transformers' own GGUF reader
and model. Needs an environment with torch, transformers and gguf, and nothing of this project.

    python tests/golden/make_smollm2_greedy.py FOLDER/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import argparse
import hashlib
import json
from pathlib import Path

import torch
import transformers
from smollm2_reference import reference_tokenizer
from transformers import AutoModelForCausalLM

OUT = Path(__file__).resolve().parent.parent / "fixtures" / "smollm2_greedy.json"
PROMPT_TOKENS, NEW_TOKENS = 64, 64

PROMPTS = (Path(__file__).parent / "prompts.txt").read_text(encoding="utf-8").splitlines()


@torch.no_grad()
def greedy(model, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The next NEW_TOKENS ids by argmax (end-of-sequence ids do not stop it) and each step's top-two logit margin."""
    ids, margins = [], []
    out = model(torch.tensor([prompt]), use_cache=True)
    for _ in range(NEW_TOKENS):
        top = out.logits[0, -1].float().topk(2)
        ids.append(int(top.indices[0]))
        margins.append(round(float(top.values[0] - top.values[1]), 6))
        out = model(torch.tensor([[ids[-1]]]), past_key_values=out.past_key_values, use_cache=True)
    return ids, margins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    path = parser.parse_args().gguf
    torch.set_num_threads(1)
    tokenizer = reference_tokenizer(path)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.eval()
    records = []
    for text in PROMPTS:
        prompt = tokenizer.encode(text, add_special_tokens=False).ids[:PROMPT_TOKENS]
        assert len(prompt) == PROMPT_TOKENS, f"{len(prompt)} tokens: {text!r}"
        ids, margins = greedy(model, prompt)
        records.append({"prompt_ids": prompt, "output_ids": ids, "margins": margins})
        print(min(margins), repr(tokenizer.decode(ids, skip_special_tokens=False)))
    document = {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "dtype": "float32",
        "ignore_eos": True,
        "prompts": records,
    }
    OUT.write_text(json.dumps(document, separators=(",", ":")).replace('{"prompt_ids"', '\n{"prompt_ids"') + "\n")


if __name__ == "__main__":
    main()
