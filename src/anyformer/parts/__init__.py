"""Pieces that more than one mechanism needs."""
