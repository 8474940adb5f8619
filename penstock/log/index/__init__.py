"""A log over an index: what the backends share, wherever their index and their events lie."""
