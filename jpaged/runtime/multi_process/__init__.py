"""One engine in several processes: a driver that plans, and followers that run the same programs.

Lives here: peers (who takes part), join (the start), Driver, follow, and the messages between them.
Promises: every process runs the same programs in the same order; a process that is lost ends the job, with its name.
Must not know: scheduling, text, models.
"""
