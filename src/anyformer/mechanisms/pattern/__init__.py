"""Patterns: each token looks at a fixed part of the sequence."""
