"""Views that are kept current by computing again, as a batch query, the units of them that changed."""
