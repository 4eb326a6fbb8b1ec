"""Where KV lives: pages, block tables, the prefix cache, and the memory policies."""
