"""The command line, the supervisor that runs an app on one machine, and the mains of its two child
processes."""
