"""Benchmarks of the real engine: what `jpaged bench` runs.

Lives here: workloads of token counts, throughput, latency, and what a run leaves behind.
Promises: names and fields are those of vLLM's bench; compilation is outside what is timed.
Must not know: how the engine works inside.
"""
