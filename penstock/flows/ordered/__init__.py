"""Flows that see the events of a key one after the other: their state is Python, and a changelog keeps it."""
