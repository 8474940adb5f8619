"""Stage 1, collection: takes events in, judges them, and never acknowledges what is not durable."""
