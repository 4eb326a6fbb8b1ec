"""Count the lines of code outside tests: `python tests/code_lines.py`, in the checkout to be counted.

A line counts if a token of code is on it: not if it is blank, a comment, or part of a docstring.
"""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

LONGEST_FILE = 350
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """How many lines of a Python file hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {line for t in tokens if t.type not in _NO_CODE for line in range(t.start[0], t.end[0] + 1)}
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    return len(code - docstrings)


def room(path: Path) -> str:
    """The folder that a file is counted under: its first two."""
    return "/".join(path.parts[: min(2, len(path.parts) - 1)]) or "."


def main() -> None:
    """Print the sum, the rooms, and the files that are too long (all their lines counted)."""
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*.py"], text=True).split("\n")
    files = {path: path.read_text(encoding="utf-8") for path in map(Path, filter(None, listed)) if path.exists()}
    files = {path: source for path, source in files.items() if path.parts[0] != "tests"}
    rooms: Counter[str] = Counter()
    for path, source in files.items():
        rooms[room(path)] += code_lines(source)
    print(f"{rooms.total()} lines of code in {len(files)} files outside tests")
    for name, count in rooms.most_common():
        print(f"{count:6} {name}")
    for path, source in files.items():
        if (length := source.count("\n")) > LONGEST_FILE:
            print(f"over {LONGEST_FILE} lines: {path} ({length})")


if __name__ == "__main__":
    main()
