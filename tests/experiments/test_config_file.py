"""Experiments in YAML: strictly typed, every mistake in one line that names the field, every sweep in a known order."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.config import CacheSection, ExperimentConfig, ModelSection
from experiments.config_file import read_experiment
from experiments.files import dump_yaml, from_plain, to_plain
from jpaged.workloads import WorkloadSpec

CONFIGS = sorted((Path(__file__).parents[2] / "experiments" / "configs").glob("*.yaml"))


def experiment(folder: Path, text: str, *overrides: str):
    path = folder / "study.yaml"
    path.write_text(f"question: Does it work?\n{text}")
    return read_experiment(path, overrides)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_in_the_repository_opens_with_its_question_and_has_sound_points(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    read = read_experiment(path)
    assert first == f"# {read.question}"
    assert read.question.endswith("?")
    assert len(read.configs) == len(read.settings) > 0
    assert len({config.digest() for config in read.configs}) == len(read.configs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cache: {page_sise: 16}", "cache.page_sise: no such field; did you mean page_size?"),
        ("polcy: {name: paged}", "polcy: no such field; did you mean policy?"),
        ("cache: {page_size: '16'}", "cache.page_size='16': expected `int`, got `str`"),
        ("cache: {page_size: 16.5}", "cache.page_size=16.5: expected `int`, got `float`"),
        ("cache: {page_size: true}", "cache.page_size=True: expected `int`, got `bool`"),
        ("cache: {page_size: 0}", "cache.page_size=0: must be between 1 and 256"),
        ("cache: 16", "cache=16: must be a section"),
        ("policy: {name: pagd}", "policy.name='pagd': choose one of paged"),
        ("workload: {rate: -1, num_requests: 3}", "workload.rate=-1"),
        ("workload: {lengths: uniform, rate: 1, num_requests: 3, prompt_tokens: [1, x]}", "prompt_tokens[1]='x'"),
        ("model: {name: opt-14b}", "model.name='opt-14b': the simulation knows opt-125m"),
        ("hardware: {device: A9}", "hardware='A9' is not known"),
        ("executor: {cost_profile: paper}", "cost profile 'paper' is not known"),
        ("policy: {name: paged, max_static_batch_len: 9}", "max_static_batch_len=9: only with batching='static'"),
        ("decoding: {pin_prefix: true}", "give workload.shared_prefix_tokens"),
        ("sweep: {gird: {}}", "sweep.gird: no such kind of sweep; did you mean grid?"),
        ("sweep: {grid: {seed: 3}}", "must have a list of values for each name"),
        ("sweep: {list: [3]}", "must be a list of settings"),
        ("sweep: {zip: {seed: [1, 2], cache.page_size: [8]}}", "seed has 2, cache.page_size has 1; give equally many"),
        ("sweep: {grid: {cache.page_sise: [8]}}", "point cache.page_sise=8: cache.page_sise: no such field"),
        ("sweep: {grid: {cache.page_size: [8, x]}}", "point cache.page_size=x: cache.page_size='x': expected `int`"),
        ("show: 3", "show=3: must be a list"),
        ("show: [goodpput]", "show: goodpput is not in a summary; did you mean request_goodput?"),
        ("seed: [", "is no YAML"),
        ("seed: !!int x", "a value cannot be read (invalid literal for int()"),
        ("seed: !!bool x", "write it plainly, without a !! tag"),
        ("seed: 2020-13-45", "seed='2020-13-45': expected `int`, got `str`"),
        ("seed: 1\ncache: {page_size: 8}\nseed: 2", "line 4: seed is there already, in line 2; give one of the two"),
        ("cache: {page_size: 8, num_pages: 9, page_size: 16}", "line 2: page_size is there already, in line 2"),
        ("stop_at_s: .inf", "stop_at_s=inf: must be above 0 and finite"),
        ("model: {load_format: pickle}", "model.load_format='pickle': choose one of auto"),
        ("decoding: {temperature: .nan}", "decoding.temperature=nan: must be finite"),
        ("decoding: {method: sample, temperature: -1}", "decoding.temperature=-1.0"),
        ("decoding: {method: sample, n: 2, temperature: 0}", "decoding.n=2 with temperature=0.0"),
        ("decoding: {method: sample, top_p: 5}", "decoding.top_p=5.0"),
        ("decoding: {method: beam, n: 1024}", "decoding.n=1024: must be between 1 and 10"),
        ("policy: {victim_policy: oldest}", "policy.victim_policy='oldest': use one of last or an import path"),
        ("policy: {admission_policy: 'nowhere:choose'}", "policy.admission_policy='nowhere:choose' cannot be imported"),
        ("policy: {eviction_policy: fifo}", "policy.eviction_policy='fifo': use one of lru"),
        (
            "workload: {lengths: sharegtp, rate: 1, num_requests: 3}",
            "workload.lengths='sharegtp': no such lengths; did",
        ),
        ("workload: {lengths: no/file.csv, rate: 1, num_requests: 3}", "'no/file.csv': there is no such file"),
        (
            "workload: {lengths: /no/such/, rate: 1, num_requests: 3}",
            "workload.lengths='/no/such/': there is no such file",
        ),
        (
            "policy: {name: vllm-2023}\ndecoding: {pin_prefix: true}\n"
            "workload: {rate: 1, num_requests: 3, shared_prefix_tokens: 64}",
            "decoding.pin_prefix=True: policy vllm-2023 has no prefix cache here",
        ),
        ("executor: {kind: jax}\npolicy: {max_num_seqs: 0}", "max_num_seqs=0: must be between 1 and 4096"),
        ("executor: {kind: jax}\npolicy: {max_model_len: 2048}\ncache: {num_pages: 1}", "num_pages=1: pages of 16"),
        ("executor: {kind: jax}\npolicy: {victim_policy: oldest}", "policy.victim_policy='oldest'"),
        (
            "executor: {kind: jax}\npolicy: {name: orca-max}\ncache: {enable_prefix_caching: true}",
            "enable_prefix_caching=True: reservation='max'",
        ),
        ("sweep: {grid: {1: [2]}}", "sweep.grid: 1 is no name of a field"),
        ("sweep: {zip: {1: [2]}}", "sweep.zip: 1 is no name of a field"),
        ("sweep: {list: [{seed: 1}, {2: 2}]}", "sweep.list: 2 is no name of a field"),
        ("sweep: {list: [{seed: 1}], grid: {seed: [2, 3]}}", "sweep.list and sweep.grid both set seed"),
        ("sweep: {list: [{}, {seed: 1}], zip: {seed: [2]}}", "sweep.list and sweep.zip both set seed"),
        ("sweep: {zip: {seed: [1]}, grid: {seed: [2]}}", "sweep.zip and sweep.grid both set seed"),
        (
            "sweep: {grid: {cache.num_pages: [500, 600], cache: [{page_size: 8}]}}",
            "sweep.grid sets cache.num_pages and sweep.grid sets cache, the one within the other",
        ),
        (
            "sweep: {list: [{cache: {page_size: 8}}], grid: {cache.num_pages: [500]}}",
            "sweep.list sets cache and sweep.grid sets cache.num_pages, the one within the other",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file_and_the_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        experiment(tmp_path, text)
    assert str(tmp_path / "study.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_without_a_question_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("seed: 1\n")
    with pytest.raises(ValueError, match="say in a sentence"):
        read_experiment(path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_experiment(tmp_path / "none.yaml")


def test_a_sweep_combines_its_list_its_zip_and_its_grid_in_that_order(tmp_path: Path) -> None:
    text = """
sweep:
  grid: {seed: [1, 2]}
  list: [{policy.name: paged}, {policy.name: orca-max}]
  zip: {cache.page_size: [8, 16], cache.num_pages: [512, 256]}
"""
    read = experiment(tmp_path, text)
    points = [(c.policy.name, c.cache.page_size, c.cache.num_pages, c.seed) for c in read.configs]
    expected = [(p, s, 4096 // s, seed) for p in ("paged", "orca-max") for s in (8, 16) for seed in (1, 2)]
    assert points == expected
    assert read.settings[0] == {"policy.name": "paged", "cache.page_size": 8, "cache.num_pages": 512, "seed": 1}


def test_what_all_points_have_in_common_tells_none_from_another(tmp_path: Path) -> None:
    read = experiment(tmp_path, "sweep: {list: [{seed: 1, cache.page_size: 8}, {seed: 2, cache.page_size: 8}]}")
    assert read.settings == ({"seed": 1}, {"seed": 2})


def test_an_override_is_typed_goes_last_and_makes_equal_points_one(tmp_path: Path) -> None:
    sweep = "sweep: {grid: {cache.page_size: [8, 16], seed: [1, 2]}}"
    read = experiment(tmp_path, sweep, "cache.page_size=32", "workload.rate=2")
    assert [(c.cache.page_size, c.seed, c.workload.rate) for c in read.configs] == [(32, 1, 2.0), (32, 2, 2.0)]
    with pytest.raises(ValueError, match=r"cache\.page_size='x': expected `int`, got `str`"):
        experiment(tmp_path, sweep, "cache.page_size=x")
    with pytest.raises(ValueError, match="write it as name=value"):
        experiment(tmp_path, sweep, "cache.page_size")
    assert experiment(tmp_path, "", "cache.num_pages=null").configs[0].cache.num_pages is None


def test_an_override_of_a_field_leaves_the_sections_of_a_sweep_alone(tmp_path: Path) -> None:
    """Both settings are one value to YAML, and what they were swept as is what tells the points apart."""
    sweep = "sweep: {list: [{cache: &small {page_size: 8}}, {cache: *small, seed: 1}, {cache: {page_size: 16}}]}"
    read = experiment(tmp_path, sweep, "cache.num_pages=300")
    assert [(c.cache.page_size, c.cache.num_pages, c.seed) for c in read.configs] == [
        (8, 300, 0),
        (8, 300, 1),
        (16, 300, 0),
    ]
    assert [setting["cache.page_size"] for setting in read.settings] == [8, 8, 16]


def test_fields_that_are_swept_in_different_settings_of_a_list_do_not_contradict(tmp_path: Path) -> None:
    read = experiment(tmp_path, "sweep: {list: [{cache: {page_size: 8}}, {cache.page_size: 32, cache.num_pages: 200}]}")
    assert [c.cache.page_size for c in read.configs] == [8, 32]


def test_a_section_merged_from_another_may_give_a_key_anew(tmp_path: Path) -> None:
    text = "sweep: {list: [{cache: &base {page_size: 8, num_pages: 300}}, {cache: {<<: *base, page_size: 16}}]}"
    read = experiment(tmp_path, text)
    assert [(c.cache.page_size, c.cache.num_pages) for c in read.configs] == [(8, 300), (16, 300)]


def test_a_mistake_of_the_config_as_a_whole_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seed") as caught:
        experiment(tmp_path, "seed: -1")
    assert str(caught.value) == f"{tmp_path / 'study.yaml'}: seed=-1: must be between 0 and {2**63 - 1}"


def test_an_override_that_is_no_value_is_one_line_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"seed='2020-13-45': expected `int`"):
        experiment(tmp_path, "", "seed=2020-13-45")
    with pytest.raises(ValueError, match=r"--set seed=!!int x: a value cannot be read") as caught:
        experiment(tmp_path, "", "seed=!!int x")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"page_size is there already"):
        experiment(tmp_path, "", "cache={page_size: 8, page_size: 9}")


def test_a_model_that_is_not_loaded_yet_bounds_no_length(tmp_path: Path) -> None:
    text = "executor: {kind: jax}\nmodel: {name: someone/model}\npolicy: {name: static, max_static_batch_len: 6000}"
    (config,) = experiment(tmp_path, text).configs
    assert config.policy.max_static_batch_len == 6000


def test_a_config_comes_back_from_its_yaml_with_the_same_digest() -> None:
    import yaml

    config = ExperimentConfig(
        workload=WorkloadSpec(lengths="uniform", prompt_tokens=(1, 9), output_tokens=(2, 3), rate=2.5, num_requests=7),
        cache=CacheSection(page_size=8, watermark=0.25),
        seed=3,
    )
    again = from_plain(yaml.safe_load(dump_yaml(to_plain(config))))
    assert again == config
    assert again.digest() == config.digest()
    assert dump_yaml(to_plain(from_plain({}))) == dump_yaml(to_plain(ExperimentConfig()))


def test_equal_configs_have_one_digest_and_one_yaml_however_their_numbers_are_written() -> None:
    whole, half = (ExperimentConfig(workload=WorkloadSpec(rate=rate, num_requests=5)) for rate in (2, 2.0))
    assert whole == half
    assert whole.digest() == half.digest()
    assert dump_yaml(to_plain(whole)) == dump_yaml(to_plain(half))


def test_the_question_is_no_part_of_the_digest_and_everything_else_is() -> None:
    base = ExperimentConfig()
    assert ExperimentConfig(question="Why?").digest() == base.digest()
    others = replace(base, seed=1), replace(base, stop_at_s=9.0), replace(base, cache=CacheSection(page_size=8))
    assert len({other.digest() for other in (base, *others)}) == 4


def test_a_quantised_pool_has_more_pages_beside_weights_of_the_same_size() -> None:
    """A page of 128-wide heads takes 132 bytes a head and token in int8, scales included, and 256 in float16."""
    from experiments.resolve import engine_configs, preset

    model = preset("llama-3-8b")
    pages: dict[str, int] = {}
    for dtype in ("auto", "int8", "float32"):
        config = ExperimentConfig(model=ModelSection(name="llama-3-8b"), cache=CacheSection(kv_cache_dtype=dtype))
        num_pages = engine_configs(config, model)[0].num_pages
        assert num_pages is not None
        pages[dtype] = num_pages
    assert pages["int8"] == pages["auto"] * 256 // 132
    assert pages["float32"] == pages["auto"] // 2


@pytest.mark.parametrize("name", ["page_size.yaml", "configs/page_size.yaml"])
def test_the_projects_own_configs_are_found_by_their_names_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from experiments.run import main

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [name, "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "16 points" in result.output
    other = CliRunner().invoke(main, ["elsewhere/page_size.yaml", "--dry-run"])
    assert other.exit_code == 2
