"""The words of docs/architecture.md have one meaning each: the retired ones do not come back."""

import ast
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("jpaged", "pallas_kernels", "models", "experiments", "examples")
# What was measured in the past, and what others wrote, stays as it was said.
HISTORY = ("docs/performance.md", "docs/paper/report.md", "docs/gpu-results.md", "docs/architecture.md")
CODE = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
PAGES = sorted(
    path for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if str(path.relative_to(ROOT)) not in HISTORY
)

RETIRED = {
    "row slot": r"\brow[ _]slots?\b|\bRowMirror\b|\btoken_row_slots\b",
    "seat, of a beam": r"\bseats?\b",
    "leader": r"\b[Ll]eaders?\b",
    "to draw, for to sample": r"\bdraw(s|n|ing)?\b|\bdrew\b",
    "a step, for per step": r"\b(tokens|requests|pages|steps|rows|bytes|ids|sums|scales?|sequences|launches) an? "
    r"(step|second|row|page|token|layer|request|sequence|head|kv head|device|group|prompt)\b",
    "so many, for this many": r"\bso many\b",
    "headers that list names": r"^Lives here:|^Must not know:",
    "astray, vain, greets": r"\bastray\b|\bin vain\b|\bmade vain\b|\bgreets\b",
}


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_is_in_no_code_and_no_page(word: str) -> None:
    pattern = re.compile(RETIRED[word], re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in [*CODE, *PAGES]
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, "\n" + "\n".join(found)


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]


def test_no_function_takes_as_its_name_where_a_plainer_verb_says_what_it_does() -> None:
    names = [f"{path.relative_to(ROOT)}: {node.name}" for path in CODE for node in functions(path)]
    found = [name for name in names if re.search(r": _?take(_|$)", name)]
    assert not found, "\n" + "\n".join(found)


def test_the_sequence_of_collections_abc_is_not_named_as_ours() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in CODE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and node.module == "collections.abc"
        and any(name.name == "Sequence" for name in node.names)
        and path.is_relative_to(ROOT / "jpaged" / "core")
    ]
    assert not found, found


def test_no_docstring_says_none_of_a_function_that_gives_something() -> None:
    found: list[str] = []
    for path in CODE:
        for node in functions(path):
            first = (ast.get_docstring(node) or "").split("\n")[0]
            returns = ast.unparse(node.returns) if node.returns else "None"
            if re.match(r"(None|Never|Nothing)\b[.:]", first) and returns != "None":
                found.append(f"{path.relative_to(ROOT)}: {node.name}: {first}")
    assert not found, "\n" + "\n".join(found)


def test_every_module_opens_with_its_purpose_in_one_line() -> None:
    for path in CODE:
        with tokenize.open(path) as file:
            text = file.read()
        doc = ast.get_docstring(ast.parse(text))
        assert not text.strip() or doc, f"{path.relative_to(ROOT)} does not say what it is for"
