"""Stage 2, the message queue: keeps streams in order, durable, replayable and compacted."""
