"""Which memory policy an engine has.

Lives here: Cache, the two that there are, and make_cache.
Promises: both offer the scheduler the same calls.
Must not know: why a call is made.
"""

from jpaged.config.engine import CacheConfig
from jpaged.core.cache.cache_manager import CacheManager
from jpaged.core.cache.prefix_cache import EvictionPolicy
from jpaged.core.cache.reserved_cache import ReservedCache

Cache = CacheManager | ReservedCache


def make_cache(config: CacheConfig, max_model_len: int, eviction_policy: EvictionPolicy | None) -> Cache:
    """The paged cache, or the one with the reservation that the config names."""
    if config.reservation == "none":
        return CacheManager(config, eviction_policy)
    return ReservedCache(config, max_model_len)
