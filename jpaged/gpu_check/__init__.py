"""One run that says how the project does on a GPU: right, how fast, and which sizes are best.

Lives here: `python -m jpaged.gpu_check`, its sections, and what it writes.
Promises: a section that fails or runs out of time loses nothing of the others; results are on disk as they come.
Must not know: how a kernel or the engine works inside.
"""
