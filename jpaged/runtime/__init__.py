"""The device side: plans become padded arrays, a few compiled programs run them, ids come back.

Static shapes out of a short list; the page pool is donated and never copied. model_runner.py is the front door.
"""
