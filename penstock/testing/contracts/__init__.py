"""Contracts as tests: a backend that is registered here runs all of them, and none can opt out."""
