"""Text to ids and back, stop strings, and outputs as they grow."""
