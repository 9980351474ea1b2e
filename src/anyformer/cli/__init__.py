"""One file, one verb."""
