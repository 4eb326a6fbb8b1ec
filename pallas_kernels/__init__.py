"""Paged attention for JAX: arrays in, arrays out.

Lives here: the pool type and the four operations on it, each with several implementations.
Promises: one meaning an operation, whatever the implementation; a named implementation never falls back.
Must not know: models, requests, schedulers.
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
