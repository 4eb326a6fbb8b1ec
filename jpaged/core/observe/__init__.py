"""What happened: counters, records, and the digest of a run."""
