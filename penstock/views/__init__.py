"""Stage 4: the current answer by key, in memory, rebuilt from its changelog in the log."""
