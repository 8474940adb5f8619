"""Stage 5: gives snapshots and changes to whoever asks, over REST, long poll, SSE and WebSocket."""
