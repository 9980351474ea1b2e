"""Low rank: the keys and values are summed into fewer of them, or into a function, before any query comes."""
