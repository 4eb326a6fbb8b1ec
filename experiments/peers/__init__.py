"""jpaged beside other engines on the same machine, in the same run.

Lives here: their environments, one client script an engine, and the rounds in which they take turns.
Promises: the same weights, prompts and lengths for everybody, greedy, end-of-sequence ignored, two threads.
Must not know: how any of the engines works inside.
"""
