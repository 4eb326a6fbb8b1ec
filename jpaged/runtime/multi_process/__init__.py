"""One engine in several processes: a driver that plans, and followers that run the same programs in the same order.

A process that is lost ends the job, with its name.
"""
