"""The command line, the supervisor of one machine, and the mains of its two child processes."""
