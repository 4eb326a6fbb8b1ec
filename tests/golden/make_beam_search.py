"""Write beam_search.json: beam searches by Hugging Face transformers in float32, with every returned sequence's score.

Ids and scores come from transformers' own `generate`; a search with a decision closer than TIE, at any of its steps, is
left out and another prompt is tried. Needs an environment with torch, transformers, safetensors and gguf, and nothing
of this project.

    python tests/golden/make_beam_search.py FOLDER/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import argparse
import itertools
import json
from collections import Counter
from pathlib import Path

import torch
import transformers
from smollm2_reference import reference_tokenizer
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
TIE = 2e-4
NEVER = -1.0e8  # transformers' mark of what cannot be chosen is -1e9
WIDTHS, PENALTIES, STOPPINGS = (2, 4, 6), (0.0, 1.0, 2.0), (False, True, "never")
TEXTS = ["Paged attention stores the keys and values of", "My favourite dish is", "1, 2, 3, 4, 5,"]


class Margins:
    """Watches the decisions of a model's beam searches and keeps the smallest difference that decided one."""

    def __init__(self, model):
        self.smallest = 1.0
        running, stop = model._get_running_beams_for_next_iteration, model._check_early_stop_heuristic

        def watch_running(**given):
            scores, ends, width = (
                given[k] for k in ("topk_log_probs", "next_token_hits_stopping_criteria", "num_beams")
            )
            self._boundary(scores[0], width)
            self._boundary(scores[0][~ends[0]], width)
            return running(**given)

        def watch_stop(**given):
            length = given["cur_len"] - given["decoder_prompt_len"]
            if given["early_stopping"] == "never" and given["length_penalty"] > 0:
                length = given["max_length"] - given["decoder_prompt_len"]
            reach = given["running_beam_scores"][0, 0] / length ** given["length_penalty"]
            if bool(given["is_sent_finished"].all()):
                self._see(abs(reach - given["beam_scores"].min()))
            return stop(**given)

        model._get_running_beams_for_next_iteration = watch_running
        model._check_early_stop_heuristic = watch_stop

    def see_order(self, scores) -> None:
        for first, second in itertools.pairwise(scores):
            self._see(first - second)

    def _boundary(self, scores, width) -> None:
        scores = scores[scores > NEVER]
        if len(scores) > width:
            self._see(scores[width - 1] - scores[width])

    def _see(self, margin) -> None:
        self.smallest = min(self.smallest, float(margin))


@torch.no_grad()
def search(model, margins, prompt, width, penalty, stopping, eos, max_tokens) -> dict:
    """One search as a record of the fixture."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=max_tokens,
        length_penalty=penalty,
        early_stopping=stopping,
        eos_token_id=list(eos) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    margins.see_order(found.sequences_scores)
    hypotheses = []
    for row in found.sequences[:, len(prompt) :].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in eos), len(row))
        hypotheses.append(row[:end])
    return {
        "beam_width": width,
        "length_penalty": penalty,
        "early_stopping": stopping,
        "eos": list(eos),
        "max_tokens": max_tokens,
        "sequences": hypotheses,
        "scores": [round(score, 6) for score in found.sequences_scores.tolist()],
    }


def random_prompt(model, margins, seed, max_tokens) -> tuple[list[int], list[int]]:
    """A random prompt, and the ids that its likely continuations have, the most common first."""
    prompt = torch.randint(3, 97, (5 + seed % 9,), generator=torch.Generator().manual_seed(seed)).tolist()
    seen = Counter()
    for sequence in search(model, margins, prompt, 6, 1.0, False, (), max_tokens)["sequences"]:
        seen.update(set(sequence[2:]))
    return prompt, [token for token, _ in seen.most_common()]


def tiny(name: str, max_tokens: int) -> list[dict]:
    """Every setting, each with a prompt of its own, with one and with three end ids that cut hypotheses short."""
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "tiny" / name, dtype=torch.float32).eval()
    margins = Margins(model)
    prompts, seed = [], 0
    for width, penalty, stopping, places in itertools.product(WIDTHS, PENALTIES, STOPPINGS, ((3,), (2, 5, 7))):
        for attempt in itertools.count():
            seed += 1
            prompt, common = random_prompt(model, margins, seed, max_tokens)
            if len(common) <= max(places):
                continue
            margins.smallest = 1.0
            eos = [common[place] for place in places]
            record = search(model, margins, prompt, width, penalty, stopping, eos, max_tokens)
            lengths = {len(sequence) for sequence in record["sequences"]}
            if margins.smallest > TIE and (len(lengths) > 1 or attempt > 60):
                break
        print(name, seed, margins.smallest, width, penalty, stopping, [len(s) for s in record["sequences"]])
        prompts.append({"model": name, "prompt_ids": prompt, "margin": margins.smallest, "searches": [record]})
    return prompts


def smollm2(path: Path) -> list[dict]:
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    tokenizer = reference_tokenizer(path)
    margins = Margins(model)
    prompts = []
    for text in TEXTS:
        margins.smallest = 1.0
        prompt = tokenizer.encode(text, add_special_tokens=False).ids
        full_stop = tokenizer.encode(".", add_special_tokens=False).ids
        records = [search(model, margins, prompt, 4, 1.0, False, eos, 24) for eos in ((2,), (2, *full_stop))]
        assert margins.smallest > TIE, f"{text!r} has a tie: {margins.smallest}"
        prompts.append({"model": "smollm2-135m", "prompt_ids": prompt, "margin": margins.smallest, "searches": records})
        print(text, margins.smallest, [tokenizer.decode(s) for s in records[1]["sequences"]])
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    path = parser.parse_args().gguf
    torch.set_num_threads(1)
    prompts = [*tiny("llama", 12), *tiny("opt-post", 12), *smollm2(path)]
    document = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__}, "prompts": prompts}
    text = json.dumps(document, separators=(",", ":"))
    for start in ('{"model"', '{"beam_width"'):
        text = text.replace(start, "\n" + start)
    (FIXTURES / "beam_search.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
