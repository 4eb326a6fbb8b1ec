"""What a beam search over the oracle's made-up log probabilities should find.

Lives here: `beam_oracle`: Hugging Face's rules, written once more, without pages, rows or shared state.
Promises: every step looks at every continuation of every running hypothesis, each computed from scratch.
Must not know: jpaged.core.requests.beam.
"""

from typing import NamedTuple

from oracle_executor import Cell, cells_of, next_cell, ranking

from jpaged.core.requests.request import FinishReason, Request


class Found(NamedTuple):
    """A hypothesis: score with length penalty, ids without the prompt, summed log probability, why it ended."""

    score: float
    token_ids: tuple[int, ...]
    total: float
    finish_reason: FinishReason


class Beam(NamedTuple):
    total: float
    token_ids: tuple[int, ...]
    cells: list[Cell]


def beam_oracle(request: Request, max_len: int, vocab_size: int = 16) -> list[Found]:
    """The hypotheses of a beam search, the best first."""
    beam = request.beam
    assert beam is not None
    stops = frozenset() if beam.ignore_eos else frozenset(request.eos_token_ids)
    width, max_outputs = beam.beam_width, max_len - len(request.prompt_token_ids)
    running, finished = [Beam(0.0, (), cells_of(request.prompt_token_ids))], list[Found]()
    for length in range(1, max_outputs + 1):
        options = sorted(
            ((b.total + logprob, i, token) for i, b in enumerate(running) for logprob, token in ranked(b, vocab_size)),
            key=lambda option: -option[0],
        )[: max(2, 1 + len(stops)) * width]
        going: list[Beam] = []
        for place, (total, parent, token) in enumerate(options):
            ids = (*running[parent].token_ids, token)
            if token in stops or length == max_outputs:
                reason = FinishReason.STOP if token in stops else FinishReason.LENGTH
                if place < width:
                    finished.append(Found(total / length**beam.length_penalty, ids, total, reason))
            elif len(going) < width:
                cells = running[parent].cells
                going.append(Beam(total, ids, [*cells, next_cell(token, len(cells), cells[-1].chain)]))
        finished = sorted(finished, key=lambda found: -found.score)[:width]
        if not going or (
            len(finished) == width and not can_improve(request, going[0].total, finished, length, max_outputs)
        ):
            break
        running = going
    return finished


def ranked(beam: Beam, vocab_size: int) -> list[tuple[float, int]]:
    return ranking(beam.cells, vocab_size)


def can_improve(request: Request, best: float, finished: list[Found], length: int, max_outputs: int) -> bool:
    """Whether the best running hypothesis could still beat the worst finished one."""
    beam = request.beam
    assert beam is not None
    if beam.early_stopping is True:
        return False
    reach = max_outputs if beam.early_stopping == "never" and beam.length_penalty > 0 else length
    return best / reach**beam.length_penalty > finished[-1].score
