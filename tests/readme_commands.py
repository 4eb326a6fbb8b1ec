"""Run every command and every snippet of the README, as a reader would: `make readme`.

Lives here: what takes the code out of README.md's fenced blocks and runs it. Not a test of the suite: it takes minutes.
Promises: the first command that fails ends it, with what it printed.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Run by CI as they are, or not to be run where there is no GPU.
ELSEWHERE = ("make ", "GPU=1 ", ".venv/bin/pip ")


def blocks(text: str) -> list[tuple[str, str]]:
    """The language ("" for a shell) and the code of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The shell commands, a line each."""
    lines = [line for language, code in blocks(text) if not language for line in code.splitlines()]
    return [line for line in lines if line.startswith(".venv/bin/") and not line.startswith(ELSEWHERE)]


def script(text: str) -> str:
    """All Python snippets as one script: the later ones use the names of the first."""
    return "\n".join(code for language, code in blocks(text) if language == "python")


def run(command: list[str] | str, folder: Path) -> None:
    """Run it in `folder`; end with its output if it fails."""
    print(f"$ {command if isinstance(command, str) else 'the Python snippets'}", flush=True)
    env = os.environ | {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}
    done = subprocess.run(
        command, shell=isinstance(command, str), cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}exit code {done.returncode}")


def main() -> None:
    """Run them all in an empty folder that sees the project's own."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seen in (".venv", "experiments"):
            (folder / seen).symlink_to(ROOT / seen)
        (folder / "snippets.py").write_text(script(text), encoding="utf-8")
        found = commands(text)
        assert len(found) >= 5 and script(text), "the README has lost its commands"
        run([sys.executable, "snippets.py"], folder)
        for command in found:
            run(command, folder)


if __name__ == "__main__":
    main()
