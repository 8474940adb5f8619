"""What Penstock measures of itself: programs that start real processes and print figures, never pass or fail."""
