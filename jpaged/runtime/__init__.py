"""The device side: plans become padded arrays, a few compiled programs run them, ids come back.

Lives here: packing, the step, the sampler, the model runner.
Promises: static shapes out of a short list; the page pool is donated and never copied.
Must not know: why a plan is as it is.
"""
