"""The simulated device: what a step costs, a clock that shows it, an executor that takes that long.

The same plans take the same integer nanoseconds, on every machine.
"""
