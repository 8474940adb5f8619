"""The processes of a running app, and what starts them and keeps them alive."""
