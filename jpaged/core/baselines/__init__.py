"""The rivals of the paper as memory policies of the same engine.

Lives here: contiguous allocators, the cache that reserves, static batches, and the named policies.
Promises: they make the same frozen plans as the paged cache, so any executor runs them.
Must not know: executors, costs.
"""
