"""The ways in: a handler each, and what a request may carry, ask for and get back."""
