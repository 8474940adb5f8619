"""Calls the client: changes and events are posted to an address that somebody left, in order, until they are taken."""
