"""The paper's walk-throughs of its Figs. 8 and 9, and the map of docs/page-maps.md, on the real host core.

Scheduler, block tables and ref counts are those that serve models; only the tokens are scripted.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.kinds import Outcome, WalkthroughConfig
from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.cache.page_pool import PagePool
from jpaged.core.engine import Engine
from jpaged.core.executor import SyncExecutor
from jpaged.core.observe.step_records import StepRecord
from jpaged.core.plan import MoveKind, SchedulerOutput, StepResult, TokenLogprobs
from jpaged.core.requests.request import Request, beam_params
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import LinearCostModel
from jpaged.sim.executor import SimExecutor

# The paper counts blocks from 0; page 0 of a pool is the null page, so its block b is page b + 1 here.
PAGE_SIZE = 4
NUM_BLOCKS = 32
WORDS = (
    "Four", "score", "and", "seven", "years", "ago", "our", "fathers", "mothers", "brought", "forth", "a", "new",
    "nation", "land", "of",
)  # fmt: skip

# Of the page map.
SYSTEM_PROMPT = tuple(range(1, 14))
# Own prompt tokens, samples, output tokens of each request. The first has the system prompt alone, and comes before.
REQUESTS = ((0, 1, 5), (5, 2, 20), (4, 1, 16), (6, 3, 14), (3, 2, 16))


class Scripted(SyncExecutor):
    """An executor that answers plans as it is told to."""

    def __init__(self, answer: Callable[[SchedulerOutput], StepResult]) -> None:
        self._answer = answer

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """The scripted answer."""
        return self._answer(plan)


def _beams(reshuffles: Mapping[int, Mapping[int, int]]) -> Callable[[SchedulerOutput], StepResult]:
    """Answers in which every beam survives, but in the steps of `reshuffles`: as many continuations of each as said."""
    beams: dict[int, tuple[int, int]] = {}

    def answer(plan: SchedulerOutput) -> StepResult:
        beams.update({each.lane: (each.index, each.params.logprobs or 0) for each in plan.admitted})
        survivors = reshuffles.get(plan.step, {0: 1, 1: 1, 2: 1, 3: 1})
        logprobs = tuple(_likely(survivors, *beams[sample.lane]) for sample in plan.samples)
        return StepResult(tuple(entry.top_ids[0] for entry in logprobs), logprobs)

    return answer


def _likely(survivors: Mapping[int, int], beam: int, count: int) -> TokenLogprobs:
    wanted = survivors.get(beam, 0)
    logprobs = tuple(-1.0 if i < wanted else -1000.0 - i for i in range(count))
    return TokenLogprobs(logprobs[0], 1, tuple(range(count)), logprobs)


def run(config: WalkthroughConfig) -> Outcome:
    """The text of a walk-through, or the picture of a run on a small pool, as a file."""
    if config.figure == "page_map":
        from jpaged.observing.page_map import page_map

        steps = records()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page_map.png"
            page_map(steps, path)
            return Outcome({"num_steps": len(steps)}, {path.name: path.read_bytes()})
    lines = {"fig8": fig8, "fig9": fig9}[config.figure]()
    num_steps = sum(line.startswith("Step ") for line in lines)
    return Outcome({"num_steps": num_steps}, {"walkthrough.txt": "\n".join(lines).encode()})


def fig8() -> list[str]:
    """Fig. 8: two samples of one prompt share its blocks 7 and 1; the first write into block 1 copies it to block 3."""
    script = (("fathers", "mothers"), ("brought", "brought"), ("forth", "forth"))
    engine = _engine(lambda plan: StepResult(tuple(map(WORDS.index, script[plan.step]))))
    _deal(engine, [7, 1, 3])
    params = SamplingParams(n=2, max_tokens=4, ignore_eos=True)
    engine.add(Request(request_id="A", prompt_token_ids=tuple(range(7)), params=params))
    lines = ["Fig. 8: parallel sampling, two samples A1 and A2 of one request, pages of 4 tokens.", ""]
    titles = {
        0: "The prompt is computed once. Both samples map their logical blocks 0 and 1 to blocks 7 and 1.",
        1: "A1 writes its first own token into block 1, which two hold: it is copied to block 3 first\n"
        "(copy-on-write), and the ref count of block 1 falls to 1. So A2, which comes next, writes in place.",
        2: "Block 7 stays shared; each sample goes on in a block of its own.",
    }
    for step, title in titles.items():
        lines += _play(engine, step, title, names=("A1", "A2"), words=WORDS)
    return lines


def fig9() -> list[str]:
    """Fig. 9: four beams; blocks 2, 4, 5 and 8 are freed when the best four all descend from candidates 1 and 2."""
    # Steps run from 0; the prompt fills block 0. Where a block has just been filled, some beams take over others.
    reshuffles = {0: {0: 4}, 4: {0: 3, 3: 1}, 8: {0: 3, 3: 1}, 12: {1: 2, 2: 2}}
    engine = _engine(_beams(reshuffles))
    deals = {0: [0], 1: [1, 13, 14, 2], 5: [3, 13, 14, 4], 9: [5, 6, 7, 8], 13: [9, 10, 11, 12]}
    beam = BeamSearchParams(beam_width=4, max_tokens=24, ignore_eos=True)
    engine.add(Request(request_id="B", prompt_token_ids=(0, 1, 2, 3), params=beam_params(beam, 0), beam=beam))
    lines = ["Fig. 9: beam search with four beams, pages of 4 tokens. Blocks that no beam holds are not shown.", ""]
    titles = {
        0: "The prompt fills block 0, and all four beams share it.",
        1: "The beams differ from here on: each writes into a block of its own.",
        5: "Three of the best four descended from beam 0, so two beams took over its blocks: block 1 is now shared by\n"
        "three, block 2 is beam 3's. Each writes on in a new block.",
        9: "Again three descended from beam 0: beams 0 to 2 share blocks 0, 1 and 3 and diverge in their fourth;\n"
        "beam 3 has diverged in its second.",
        12: "Before the dashed line of the figure: all blocks are full.",
        13: "The best four all descend from beams 1 and 2. Blocks 2, 4, 5 and 8 have lost their last holder and\n"
        "are free; the new tokens go to blocks 9 to 12. All share 0, 1 and 3; beams 0 and 1 share 6, 2 and 3 share 7.",
    }
    for step in range(14):
        if step in deals:
            _deal(engine, deals[step])
        played = _play(engine, step, titles.get(step, ""), names=("0", "1", "2", "3"), words=None)
        if step in titles:
            lines += played
    return lines


def _engine(answer: Callable[[SchedulerOutput], StepResult]) -> Engine:
    return Engine(
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=32),
        CacheConfig(num_pages=NUM_BLOCKS, page_size=PAGE_SIZE, enable_prefix_caching=False, watermark=0.0),
        Scripted(answer),
        vocab_size=len(WORDS),
        record_steps=True,
    )


def _deal(engine: Engine, blocks: list[int]) -> None:
    """Let the free pages come in this order, as if earlier requests had given them back so."""
    pool = engine.scheduler.cache.pool
    assert isinstance(pool, PagePool)
    free = sorted(pool.allocate() for _ in range(pool.num_free))
    first = [block + 1 for block in blocks]
    for page in reversed([*first, *(page for page in free if page not in first)]):
        pool.drop(page)
        pool.free(page)


def _play(engine: Engine, step: int, title: str, *, names: tuple[str, ...], words: tuple[str, ...] | None) -> list[str]:
    """Run one step; its title, copies, block tables and ref counts as lines of text."""
    assert engine.recorder is not None
    before = _ref_counts(engine.recorder.records[-1]) if engine.recorder.records else Counter[int]()
    ids = {s.index: list(s.token_ids) for group in engine.scheduler.running for s in group.live}
    engine.step()
    record = engine.recorder.records[-1]
    assert record.step == step
    counts = _ref_counts(record)
    lines = [f"Step {step}. {title}"]
    for copy in record.moved(MoveKind.COPY):
        source, target = copy.source - 1, copy.target - 1
        lines.append(f"  copy block {source} -> block {target}: ref count {before[source]} -> {counts[source]}")
    for table in record.tables:
        blocks = [page - 1 for page in table.pages]
        lines.append(f"  {names[table.index]}: blocks {' '.join(f'{b:2}' for b in blocks)}")
        if words is not None:
            tokens = [words[token] for token in ids.get(table.index) or range(7)]
            cells = (tokens[i : i + PAGE_SIZE] for i in range(0, len(tokens), PAGE_SIZE))
            lines += [f"      block {b}: {' '.join(cell)}" for b, cell in zip(blocks, cells, strict=True)]
    lines.append("  ref counts: " + ", ".join(f"block {block}: {count}" for block, count in sorted(counts.items())))
    freed = sorted(set(before) - set(counts))
    if freed:
        lines.append("  freed: " + ", ".join(f"block {block}" for block in freed))
    engine.scheduler.check()
    return [*lines, ""]


def _ref_counts(record: StepRecord) -> Counter[int]:
    return Counter(page - 1 for table in record.tables for page in table.pages)


def records() -> list[StepRecord]:
    """What each step of the run did to the pages."""
    # Steps take no time, so the clock stands still: a map counts steps.
    clock = VirtualClock()
    engine = Engine(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64),
        CacheConfig(num_pages=26, page_size=4, num_host_pages=64),
        SimExecutor(LinearCostModel(name="free"), clock, page_size=4),
        vocab_size=1000,
        clock=clock,
        record_steps=True,
    )
    for i, (own, samples, outputs) in enumerate(REQUESTS):
        prompt = (*SYSTEM_PROMPT, *(100 * i + j for j in range(own)))
        params = SamplingParams(n=samples, max_tokens=outputs)
        engine.add(Request(request_id=str(i), prompt_token_ids=prompt, params=params))
        while i == 0 and engine.has_unfinished:
            engine.step()
    while engine.has_unfinished:
        engine.step()
    assert engine.recorder is not None
    return engine.recorder.records
