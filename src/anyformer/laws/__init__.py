"""What every mechanism must obey, whatever its card claims; they run on anybody's module too."""
