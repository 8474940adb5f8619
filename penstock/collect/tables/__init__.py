"""Rows of tables on their way in: judged, weighed against what is there, and written."""
