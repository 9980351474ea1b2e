"""Whole models of any mechanism: one block, and what is stacked of it."""
