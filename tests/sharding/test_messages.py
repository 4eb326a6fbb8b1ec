"""A plan crosses to another process and is the same; what is no message of ours is refused."""

import socket
import struct

import msgspec
import pytest

from jpaged.core.plan import (
    AdmittedSequence,
    MoveKind,
    PageGrant,
    PageMove,
    Sample,
    ScheduledSequence,
    SchedulerOutput,
)
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.runtime.multi_process.wire import Channel

PARAMS = SamplingParams(
    n=3, temperature=0.7, top_p=0.9, seed=2**62, stop=["a", "b"], stop_token_ids=[5], logit_bias={7: -3.5, 9: 100.0},
    max_tokens=None, prompt_logprobs=2,
)  # fmt: skip
PLAN = SchedulerOutput(
    step=7,
    rows=(ScheduledSequence(0, 3, 1), ScheduledSequence(4, 0, 16)),
    samples=(Sample(0, 0), Sample(1, 4), Sample(1, 5)),
    admitted=(
        AdmittedSequence(4, "request ä", 1, tuple(range(40)), 40, PARAMS, 2**64 - 1, (2, 3)),
        AdmittedSequence(5, "", 0, (1,), 1, SamplingParams(temperature=0.0), 0, ()),
    ),
    grants=(PageGrant(4, 0, (9, 8, 7)),),
    moves=(
        PageMove(MoveKind.SWAP_OUT, 2, 0),
        PageMove(MoveKind.SWAP_IN, 1, 5),
        PageMove(MoveKind.SWAP_IN, 2, 6),
        PageMove(MoveKind.COPY, 3, 9),
    ),
    preempted=("other",),
)


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    yield Channel(one), other, Channel(other)
    one.close()
    other.close()


@pytest.mark.parametrize("plan", [PLAN, SchedulerOutput(step=0)])
def test_a_plan_that_crosses_is_the_same(ends, plan):
    channel, _, other = ends
    channel.send(["plan", 1, plan])
    message = other.receive(5.0)
    assert message is not None and message[:2] == ["plan", 1]
    got = msgspec.convert(message[2], SchedulerOutput)
    assert got == plan and hash(got.rows) == hash(plan.rows)


def test_a_decode_row_takes_few_bytes(ends):
    rows = tuple(ScheduledSequence(i, 1000 + i, 1) for i in range(256))
    plan = SchedulerOutput(step=9, rows=rows, samples=tuple(Sample(i, i) for i in range(256)))
    assert len(msgspec.msgpack.encode(plan)) < 256 * 16


def test_the_end_of_a_connection_is_no_message(ends):
    channel, _, other = ends
    channel.send(["beat"])
    channel.close()
    assert other.receive(5.0) == ["beat"]
    assert other.receive(5.0) is None
    other.send(["beat"])  # to nobody: not an error, whoever receives notices


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\1\x01", b"\0\0\0\2\x91\x01", b"\0\0\0\1\xc1"])
def test_what_is_no_message_is_refused(ends, data):
    channel, other, _ = ends
    other.sendall(data)
    with pytest.raises(ValueError, match="the other end is not a jpaged process"):
        channel.receive(5.0)


def test_a_message_that_was_cut_off_is_the_end(ends):
    channel, other, _ = ends
    other.sendall(struct.pack("!I", 100) + b"abc")
    other.close()
    assert channel.receive(5.0) is None
