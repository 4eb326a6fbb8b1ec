"""One run that says how the project does on a GPU: right, how fast, and which sizes are best.

A section that fails or runs out of time loses nothing of the others; results are on disk as they come.
"""
