"""The formats of a body beside JSON, one file or family of files each."""
