"""Benchmarks of the real engine: what `jpaged bench` runs.

Names and fields are those of vLLM's bench; compilation is outside what is timed.
"""
