"""The ways to a server, one file each; `penstock.client.transport` says what they promise."""
