"""The outside systems that a pull can read, one file each; the contract is `source.py`."""
