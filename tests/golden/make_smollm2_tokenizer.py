"""Write tests/fixtures/smollm2_tokenizer.json: token ids and chat renderings of SmolLM2 by Hugging Face libraries.

Ids come from the tokenizers library, renderings from transformers' own chat-template code. Needs an environment with
transformers, tokenizers, gguf and jinja2, and nothing of this project.

    python tests/golden/make_smollm2_tokenizer.py FOLDER/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import argparse
import hashlib
import json
from pathlib import Path

import tokenizers
import transformers
from smollm2_reference import chat_template, reference_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

# ruff: noqa: RUF001 - the strings are odd on purpose
OUT = Path(__file__).resolve().parent.parent / "fixtures" / "smollm2_tokenizer.json"

STRINGS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing spaces   ",
    "The quick brown fox can't jump; it's over the lazy dog's back, they'll say.",
    "In 2023 the price rose from 1,234.50 to 98765 (a 7900% rise).",
    "line one\nline two\n\n\tindented with a tab\r\nand a carriage return\n",
    "Straße, naïve café, Ångström, señor, fiancée",
    "Привет, мир! Γειά σου Κόσμε.",
    "日本語のテキストと中文文本，以及한국어.",
    "emoji: 🙂🚀👩‍👩‍👧‍👦🇫🇷 done",
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|>more text<|im_end|>",
    "<|im_start|><|im_start|> <|not_special|> <|im_end|>x",
    "mixed١٢٣ digits ４５６ and ½ ² Ⅷ",
    "e\u0301 combining, zero\u200bwidth, nbsp\u00a0here, \ufeffbom",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "a" * 40 + "    " + "." * 20,
]

CHATS = [
    [{"role": "user", "content": "What is a page table?"}],
    [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Capital of France?"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi! How can I help?"},
        {"role": "user", "content": "Count to 3.\nThen stop."},
    ],
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    path = parser.parse_args().gguf
    reference = reference_tokenizer(path)
    hf = PreTrainedTokenizerFast(tokenizer_object=reference)
    hf.chat_template = chat_template(path)
    converted = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    strings, differing = [], 0
    for text in STRINGS:
        ids = reference.encode(text, add_special_tokens=False).ids
        strings.append(
            {
                "text": text,
                "ids": ids,
                "decoded": reference.decode(ids, skip_special_tokens=False),
                "decoded_without_special": reference.decode(ids, skip_special_tokens=True),
            }
        )
        other = converted.encode(text, add_special_tokens=False)
        if other != ids:
            differing += 1
            print(f"transformers' GGUF conversion differs on {text!r}:\n  {ids}\n  {other}")
    chats = []
    for messages in CHATS:
        for generation_prompt in (True, False):
            text = hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation_prompt)
            ids = reference.encode(text, add_special_tokens=False).ids
            chats.append({"messages": messages, "add_generation_prompt": generation_prompt, "text": text, "ids": ids})
    document = {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "made_with": {"tokenizers": tokenizers.__version__, "transformers": transformers.__version__},
        "strings": strings,
        "chats": chats,
    }
    OUT.write_text(json.dumps(document, indent=1, ensure_ascii=True) + "\n")
    print(f"{len(strings)} strings, {differing} read differently by transformers' GGUF conversion")


if __name__ == "__main__":
    main()
