"""Exact attention: the reference that the others are measured against."""
