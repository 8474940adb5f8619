"""How much is taken from whom, and what happens above it: room, turns, rates, lag, shedding."""
