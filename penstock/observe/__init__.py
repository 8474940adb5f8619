"""What the system says of itself: signals become log lines and metrics."""
