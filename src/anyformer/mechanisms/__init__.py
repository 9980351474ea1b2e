"""One folder per idea, one file per paper; a file dropped in is found by its name."""
