"""Sources that do not come to us: how each is read, resumed, and run by one edge at a time."""
