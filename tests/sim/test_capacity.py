"""How many pages fit: the paper's Table 1, and what does not fit at all."""

import pytest

from jpaged.sim.capacity import pages_that_fit, swap_pages
from jpaged.sim.hardware import hardware_named
from models.families import PRESETS


@pytest.mark.parametrize(
    ("model", "hardware", "size", "pages"),
    # Slots 15.7K, 9.7K and 60.1K in pages of 16; the paper's other figures pin the first two to the page.
    [("opt-13b", "A100-40GB", 1, 984), ("opt-66b", "A100-40GB", 4, 604), ("opt-175b", "A100-80GB", 8, 3756)],
)
def test_the_pages_of_table_1(model: str, hardware: str, size: int, pages: int):
    assert pages_that_fit(PRESETS[model], hardware_named(hardware), tensor_parallel_size=size) == pages


def test_llama_13b_has_about_the_pages_of_fig_16():
    assert pages_that_fit(PRESETS["llama-13b"], hardware_named("A100-40GB")) == pytest.approx(985, rel=0.02)


def test_pages_of_other_sizes_hold_the_same_tokens():
    device = hardware_named("A100-40GB")
    for page_size in (1, 8, 32, 256):
        pages = pages_that_fit(PRESETS["opt-13b"], device, page_size=page_size)
        assert 984 * 16 - page_size < pages * page_size < 985 * 16


def test_swap_space_is_twenty_gibibytes_a_device():
    assert swap_pages(PRESETS["opt-13b"]) == 1638
    assert swap_pages(PRESETS["opt-66b"], tensor_parallel_size=4) == 20 * 1024 // 9
    assert swap_pages(PRESETS["opt-13b"], bytes_per_device=2**30, page_size=32) == 40


def test_a_model_without_room_says_what_to_change():
    with pytest.raises(ValueError, match=r"tensor_parallel_size=1: the weights take 12\d\.\d GiB of each A100-80GB"):
        pages_that_fit(PRESETS["opt-66b"], hardware_named("A100-80GB"))
    with pytest.raises(ValueError, match=r"tensor_parallel_size=3 does not divide the 40 kv heads"):
        pages_that_fit(PRESETS["opt-13b"], hardware_named("A100-80GB"), tensor_parallel_size=3)
