"""Every option of an engine, checked once and then frozen."""
