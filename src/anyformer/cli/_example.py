"""A small example of each mechanism: the attention matrix that it amounts to."""

from typing import Any

from anyformer.card import Card

Matrix = list[list[float]]


def example_options(card: Card, chosen: dict[str, Any], tokens: int | None) -> dict[str, Any]:
    """The card's tiny setting, without what the variant sets and with room for the tokens."""
    around = {"dim", "heads", "head_dim", "causal", "key_heads", "bias"}
    options = {name: value for name, value in card.tiny.items() if name not in around | set(chosen)}
    if tokens and "max_length" in options:
        options["max_length"] = max(tokens, options["max_length"])
    return options


def matrix(spec: str, causal: bool, tokens: int, options: dict[str, Any]) -> Matrix:
    """What each query (row) takes of each key's value: attention to the identity gives the weights themselves."""
    import torch

    from anyformer.catalog import core

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        attention = core(spec, heads=2, head_dim=8, causal=causal, **options).double().eval()
        q, k = torch.randn(2, 1, 2, tokens, 8, dtype=torch.float64)
        identity = torch.eye(tokens, dtype=torch.float64).expand(1, 2, tokens, tokens)
        weights: Matrix = attention.attend(q, k, identity)[0, 0].tolist()
    return weights
