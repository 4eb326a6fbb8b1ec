"""jpaged beside other engines on the same machine, in the same run.

The same weights, prompts and lengths for everybody, greedy, end-of-sequence ignored, two threads.
"""
