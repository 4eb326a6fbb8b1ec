"""From a model name to an engine that answers."""
