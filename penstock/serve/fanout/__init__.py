"""One change to many subscribers: queries that are shared, messages that are made once, and those who are too slow."""
