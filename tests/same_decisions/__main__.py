"""Run the fixed runs and print their digests: `python -m tests.same_decisions [--write] [--readme] [NAME...]`.

--write records them in tests/golden/plan_digests.json: only where a change of decisions is meant.
"""

import sys
import time

from .golden import machine, read, write
from .readme import SAMPLED, answers
from .runs import RUNS


def main(arguments: list[str]) -> int:
    """Print a line for each run, changed or equal; 1 if any has changed."""
    recorded = read()
    wanted = [argument for argument in arguments if not argument.startswith("--")]
    changed = 0
    for name, run in RUNS.items():
        if wanted and not name.startswith(tuple(wanted)):
            continue
        start = time.process_time()
        outcome = run.outcome()
        found = outcome.digests
        equal = recorded["runs"].get(name) == found
        changed += not equal
        events = ", ".join(f"{key} {count}" for key, count in sorted(outcome.events.items()) if count)
        print(
            f"{name:<42} {' '.join(found):<34} {'equal' if equal else 'CHANGED'} {time.process_time() - start:5.1f} s"
        )
        print(f"    {events}")
        recorded["runs"][name] = found
    if "--readme" in arguments:
        drawn = recorded["sampled"].setdefault(machine(), {})
        for name, ids in answers().items():
            known = drawn if name in SAMPLED else recorded["readme"]
            equal = known.get(name) == ids
            changed += not equal
            print(f"{name:<42} {sum(map(len, ids))} ids {'equal' if equal else 'CHANGED'}")
            known[name] = ids
    if "--write" in arguments:
        write(recorded)
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
