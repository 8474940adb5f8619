"""From what was sent to typed columns: each event is a row or a rejection, by its stream's class."""
