"""Workloads in files: what is saved comes back, what is not understood is refused by line and field."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jpaged.workloads import Workload, load_workload, save_csv
from jpaged.workloads.files import read_trace


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    count = draw(st.integers(1, 12))

    def column(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    shared = draw(st.sampled_from([0, 0, 7]))
    arrival, prompt, output = tuple(sorted(column(0, 10**15))), column(7, 100), column(1, 50)
    kind = draw(st.sampled_from(["none", "blocks", "sessions"]))
    if kind == "blocks":
        unit = draw(st.integers(1, 40))
        ids = tuple(tuple(draw(st.integers(0, 30)) for _ in range(-(-tokens // unit))) for tokens in prompt)
        return Workload(
            arrival_ns=arrival, prompt_tokens=prompt, output_tokens=output, prefix_ids=ids, prefix_unit=unit
        )
    session = turn = None
    if kind == "sessions":
        session, turn, tokens = column(0, 3), tuple(range(count)), dict[int, int]()
        grown = list[int]()
        for row in range(count):
            grown.append(tokens.get(session[row], 0) + prompt[row])
            tokens[session[row]] = grown[-1] + output[row]
        prompt = tuple(grown)
    return Workload(
        arrival_ns=arrival,
        prompt_tokens=prompt,
        output_tokens=output,
        session=session,
        turn=turn,
        shared_prefix_tokens=shared,
    )


@settings(suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture])
@given(workloads(), st.sampled_from(["w.csv", "w.csv.gz"]))
def test_a_saved_workload_comes_back_with_its_digest(tmp_path: Path, workload: Workload, name: str):
    save_csv(workload, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    again = load_workload(tmp_path / name)
    assert again.digest() == workload.digest()
    # No time of writing in the header of the gzip file.
    assert name.endswith(".csv") or content[4:8] == bytes(4)
    assert (again.prefix_ids, again.session, again.turn) == (workload.prefix_ids, workload.session, workload.turn)
    save_csv(again, tmp_path / name)
    assert (tmp_path / name).read_bytes() == content


@given(workloads(), st.data())
def test_the_digest_tells_workloads_apart(workload: Workload, data: st.DataObject):
    assert replace(workload, name="other", notes=("x",)).digest() == workload.digest()
    row = data.draw(st.integers(0, len(workload) - 1))
    # The last row's answer may be of any length.
    outputs = [*workload.output_tokens[:-1], workload.output_tokens[-1] + 1]
    assert replace(workload, output_tokens=tuple(outputs)).digest() != workload.digest()
    later = [at + (i >= row) for i, at in enumerate(workload.arrival_ns)]
    assert replace(workload, arrival_ns=tuple(later)).digest() != workload.digest()
    assert workload.first(row).digest() != workload.digest()


HEAD = "prompt_tokens,output_tokens"
BAD = [
    ("", "line 1: column prompt_tokens is missing"),
    (HEAD, "has no requests; add a line"),
    ("prompt_tokens\n1", "line 1: column output_tokens is missing; the file needs prompt_tokens and output_tokens"),
    (HEAD + ",color\n1,2,3", "line 1: column 'color' is unknown; the columns are arrival_s,"),
    (HEAD + ",prompt_tokens\n1,2,3", "line 1: column prompt_tokens is there twice"),
    (HEAD + ",arrival_s,arrival_ns\n1,2,3,3", "columns arrival_s and arrival_ns are both there"),
    (HEAD + ",session\n1,2,3", "columns session and turn go together"),
    (HEAD + "\n1,2,3", "line 2: has 3 values for 2 columns"),
    (HEAD + "\n1", "line 2: has 1 values for 2 columns"),
    (HEAD + "\n1,2\n1.5,2", "line 3: prompt_tokens='1.5': must be an integer"),
    (HEAD + "\n1,\n", "line 2: output_tokens='': must be an integer"),
    (HEAD + "\n1," + "9" * 5000, "line 2: output_tokens='99"),
    (HEAD + "\n1,2\n\n0,2", "line 4: prompt_tokens=0: must be an integer in [1,"),
    (HEAD + "\n1,-2", "line 2: output_tokens=-2: must be an integer in [1,"),
    (HEAD + ",arrival_s\n1,2,nan", "line 2: arrival_s='nan': must be a finite number of seconds"),
    (HEAD + ",arrival_s\n1,2,inf", "line 2: arrival_s='inf': must be a finite number of seconds"),
    (HEAD + ",arrival_s\n1,2,-1", "line 2: arrival_s='-1': must be a finite number of seconds, at least 0"),
    (HEAD + ",arrival_s\n1,2,3\n1,2,2.9", "line 3: arrival_ns=2900000000: is before the 3000000000 of the row above"),
    (HEAD + ",hash_ids\n1,2,3", "has hash_ids but not of how many tokens each; give prefix_unit"),
    (HEAD + ",hash_ids,prefix_unit\n9,2,3,8", "line 2: prefix_ids: has 1 ids, but 9 prompt tokens are 2 blocks"),
    (HEAD + ",hash_ids,prefix_unit\n9,2,3 x,8", "line 2: hash_ids='x': must be an integer"),
    (HEAD + ",hash_ids,prefix_unit\n9,2,3 4,8\n9,2,3 4,9", "line 3: prefix_unit=9: line 2 says 8"),
    (HEAD + ",prefix_unit\n9,2,8", "has a prefix_unit but no hash_ids"),
    (HEAD + ",session,turn\n9,2,0,0\n9,2,0,1", "line 3: prompt_tokens=9: session 0 has 11 tokens already"),
    (HEAD + ",session,turn\n9,2,0,1\n19,2,0,1", "line 3: turn=1: session 0 had turn 1 before"),
    (HEAD + ",shared_prefix_tokens\n9,2,10", "shared_prefix_tokens=10: a prompt has 9 tokens"),
]  # fmt: skip
BAD_JSON = [
    ('{"prompt_tokens": 1}', "line 1: column output_tokens is missing"),
    ('{"prompt_tokens": 1, "output_tokens": 2}\n{"output_tokens": 2, "prompt_tokens": "1"}', "line 2: prompt_tokens="),
    ('{"prompt_tokens": 1, "output_tokens": true}', "line 1: output_tokens=True: must be a number"),
    ('{"prompt_tokens": 1, "output_tokens": 2.0}', "line 1: output_tokens='2.0': must be an integer"),
    ('{"prompt_tokens": 1, "output_tokens": 2, "arrival_s": NaN}', "arrival_s='NaN': must be a finite number"),
    ('{"prompt_tokens": 1, "output_tokens": 2, "hash_ids": "0"}', "hash_ids='0': must be a number or a list of"),
    ('{"prompt_tokens": 1, "output_tokens": 2, "hash_ids": ["0"]}', "must be a number or a list of integers"),
    ('{"prompt_tokens": 1, "output_tokens": 2, "output_tokens": 3}', "output_tokens is there twice"),
    ('{"prompt_tokens": 1, "output_tokens": 2}\n{"prompt_tokens": 1, "output_tokens": 2, "turn": 0, "session": 0}',
     "line 2: has the fields"),
    ("[1, 2]", "line 1: is no JSON object"),
    ("{", "line 1: is no JSON object"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "said"), BAD)
def test_a_bad_csv_is_refused_by_line_and_field(tmp_path: Path, content: str, said: str):
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"trace\.csv") as caught:
        load_workload(path)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("content", "said"), BAD_JSON)
def test_bad_json_lines_are_refused_by_line_and_field(tmp_path: Path, content: str, said: str):
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"trace\.jsonl") as caught:
        load_workload(path, prefix_unit=4 if "hash_ids" in content else None)
    assert said in str(caught.value)


def test_what_is_no_such_file_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="No such file"):
        load_workload(tmp_path / "none.csv")
    (tmp_path / "text.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not text in UTF-8"):
        load_workload(tmp_path / "text.csv")
    whole = gzip.compress(b"prompt_tokens,output_tokens\n" + b"1,2\n" * 9999)
    for broken in (b"plain", whole[:-30], whole[:30] + b"\xff" * 9 + whole[30:]):
        (tmp_path / "w.csv.gz").write_bytes(broken)
        with pytest.raises(ValueError, match=r"w\.csv\.gz"):
            load_workload(tmp_path / "w.csv.gz")


def test_the_same_rows_are_the_same_workload_in_either_format(tmp_path: Path):
    rows = [(0.0, 9, 2, [0, 1]), (1e-9, 16, 3, [0, 2]), (0.0000000015, 17, 1, [0, 2, 3])]
    names = ("arrival_s", "prompt_tokens", "output_tokens", "hash_ids")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (tmp_path / "w.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "w.csv").write_text(
        "arrival_ns,output_tokens,prompt_tokens,hash_ids,prefix_unit\r\n"
        "0,2,9,0 1,8\r\n1,3,16,0 2,8\r\n2,1,17,0 2 3,8\r\n"
    )
    read = load_workload(tmp_path / "w.jsonl", prefix_unit=8)
    assert read.digest() == load_workload(tmp_path / "w.csv").digest()
    assert read.arrival_ns == (0, 1, 2)
    with pytest.raises(ValueError, match=r"prefix_unit=4: .* says 8"):
        load_workload(tmp_path / "w.csv", prefix_unit=4)


def test_a_file_without_arrivals_is_told_from_one_that_arrives_at_once(tmp_path: Path):
    (tmp_path / "a.csv").write_text("prompt_tokens,output_tokens\n1,2\n")
    (tmp_path / "b.csv").write_text("prompt_tokens,output_tokens,arrival_s\n1,2,0\n")
    a, b = (read_trace(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert (a.has_arrivals, b.has_arrivals) == (False, True)
    assert a.workload.digest() == b.workload.digest()
