"""Greedy continuations of SmolLM2-135M-Instruct by Hugging Face transformers, in float32.

Lives here: the prose prompts, and the loop that writes tests/fixtures/smollm2_greedy.json.
Promises: ids and top-two margins from transformers' own GGUF reader and model; nothing of this project is used.
Must not know: any package of this project. Needs an environment with torch, transformers and gguf.

    python tests/golden/make_smollm2_greedy.py FOLDER/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import argparse
import hashlib
import json
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

from smollm2_reference import reference_tokenizer

OUT = Path(__file__).resolve().parent.parent / "fixtures" / "smollm2_greedy.json"
PROMPT_TOKENS, NEW_TOKENS = 64, 64

PROMPTS = [
    "The lighthouse keeper had lived on the island for thirty years, and in all that time he had never once missed a "
    "night of work. Every evening, just before the sun touched the water, he climbed the narrow iron stairs, cleaned "
    "the great glass lens with a soft cloth, and lit the lamp. On the last evening of October, however, something "
    "unusual happened when he reached the top of the stairs and looked out across the dark sea.",
    "Photosynthesis is the process by which green plants, algae and some bacteria turn light energy into chemical "
    "energy. Inside the leaf, molecules of chlorophyll absorb light, mostly in the red and blue parts of the "
    "spectrum, and use that energy to split water into oxygen, protons and electrons. The second stage of the process, "
    "which does not need light directly, is known as the Calvin cycle, and it uses carbon dioxide from the air in order to",
    "Dear Mr. Harrison, thank you for your letter of the twelfth of March concerning the repairs to the roof of the "
    "village hall. The committee met last Thursday to discuss the three quotations that we have received so far, and "
    "we agreed that the cheapest of them is unlikely to include the cost of the scaffolding. Before we make a final "
    "decision, we would therefore like to ask you whether it might be possible to",
    "To bake a simple loaf of bread you need only four things: flour, water, salt and yeast. Mix five hundred grams "
    "of strong flour with ten grams of salt and seven grams of dried yeast, then pour in three hundred and twenty "
    "millilitres of warm water and stir until you have a rough dough. Turn the dough out onto a clean table and knead it "
    "for about ten minutes, until it is smooth and elastic. After that, you should",
    "In the history of computing, the idea of virtual memory stands out as one of the most useful tricks ever "
    "invented. A program is given the illusion of a large and continuous range of addresses, while the operating "
    "system quietly maps small fixed pieces of that range, called pages, to whatever frames of physical memory happen to be "
    "free at the moment. The main advantage of this approach is that",
    "The city council announced on Monday that the old tram line between the harbour and the central station will be "
    "reopened next spring, almost forty years after it was closed. Residents along the route have mixed feelings "
    "about the plan. Some of them hope that the trams will bring new customers to the shops, while others worry about the "
    "noise and about the price of the tickets. The mayor said in a statement that",
    "A prime number is a whole number greater than one that has no divisors other than one and itself. The first few "
    "primes are 2, 3, 5, 7, 11 and 13. More than two thousand years ago, Euclid gave a short and beautiful proof that "
    "the list of primes never ends. Suppose, he said, that there were only finitely many of them; then multiply them all "
    "together and add one. The resulting number",
    "My grandmother kept her recipes in a small tin box painted with blue flowers. When I was a child I was allowed to "
    "open it only on Sundays, and I remember the smell of cinnamon and old paper that came out of it. After she died, "
    "the box was given to me, and for several months I could not bring myself to look inside. When I finally did, I "
    "found, beneath the last card, a folded letter that began with the words",
    "Good morning, everyone, and welcome to the third lecture of this course on the climate of the Earth. Last week we "
    "talked about the energy balance of the planet, and we saw that the average temperature at the surface depends on "
    "how much sunlight is reflected and how much heat escapes to space. Today I want to talk about the oceans, which "
    "store far more heat than the air above them. The first question that we need to ask is",
    "The detective put his hat on the table and looked slowly around the room. Nothing had been stolen, as far as anybody "
    "could tell; the silver was still in its cabinet and the paintings were still on the wall. Yet the window had been "
    "forced from the outside, and there was a single wet footprint on the carpet beside the piano. He turned to the "
    "housekeeper and asked her quietly",
]


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
