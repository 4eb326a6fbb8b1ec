"""The host core: requests, pages, block tables, scheduling, with the standard library alone.

The same requests and configs give the same plans, whichever executor runs them.
"""
