"""Time, memory and operations."""
