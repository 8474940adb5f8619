"""Dead letters: how they are kept, found again, mended and replayed once."""
