"""Several engines as one service: routing over replicas, and prompts apart from the tokens after them.

Lives here: Router, ReplicaSet, Disaggregated.
Promises: plain Python on top of the host core; greedy tokens are those of one engine.
Must not know: jax, the runtime, the simulator.
"""
