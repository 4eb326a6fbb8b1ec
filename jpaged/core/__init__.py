"""The host core: requests, pages, block tables, scheduling.

Lives here: everything that decides what runs next and where its KV lives. Standard library only.
Promises: the same requests and configs give the same plans, whichever executor runs them.
Must not know: jax, arrays, text.
"""
