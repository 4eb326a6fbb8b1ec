"""Paged attention for JAX: arrays in, arrays out.

A pool type and four operations on it, each with several implementations of one meaning. A named implementation never
falls back to another.
"""

from pallas_kernels.copy_pages import copy_pages
from pallas_kernels.dispatch import beside_attention, resolve
from pallas_kernels.kv_pages import KVPages, allocate
from pallas_kernels.paged_attention import paged_attention
from pallas_kernels.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.write_kv import write_kv

__all__ = [
    "KVPages",
    "allocate",
    "beside_attention",
    "copy_pages",
    "paged_attention",
    "ragged_paged_attention",
    "resolve",
    "write_kv",
]
