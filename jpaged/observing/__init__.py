"""Pictures and traces of a run."""
