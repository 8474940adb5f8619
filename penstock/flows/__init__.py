"""Stage 3, analysis: runs the user's functions as Spark Structured Streaming queries."""
