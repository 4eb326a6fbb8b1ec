"""Several engines as one service: routing over replicas, and prompts apart from the tokens after them.

Plain Python on top of the host core; the tokens are those of one engine.
"""
