"""The backends of the log, each named after the system that keeps its events."""
