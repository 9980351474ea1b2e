"""Choosing the next token from its logits."""

from typing import Any

import torch
from torch import Generator, Tensor

from anyformer.contract import require_positive


def check_sampling(
    vocabulary: int, stop: int | None, temperature: float, top_k: int | None, generator: Generator | None
) -> None:
    if stop is not None:
        check_token(vocabulary, stop=stop)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise TypeError(f"temperature is a number, not {temperature!r}")
    if not 0 <= temperature < torch.inf:
        raise ValueError(f"temperature must be finite and at least 0, not {temperature}")
    if top_k is not None:
        require_positive(top_k=top_k)
        if top_k > vocabulary:
            raise ValueError(f"top_k={top_k} is more than the vocabulary of {vocabulary}; leave it out to take all")
    if temperature == 0 and (top_k is not None or generator is not None):
        raise ValueError("top_k and generator have no effect at temperature=0, which takes the likeliest token")


def check_token(vocabulary: int, **tokens: Any) -> None:
    for name, token in tokens.items():
        if isinstance(token, bool) or not isinstance(token, int):
            raise TypeError(f"{name} is the number of a token, not {token!r}")
        if not 0 <= token < vocabulary:
            raise ValueError(f"{name}={token} is no token of a vocabulary of {vocabulary}")


def pick(logits_BV: Tensor, temperature: float, top_k: int | None, generator: Generator | None) -> Tensor:
    """A token for each item: the likeliest at temperature 0, else drawn from the softmax of the `top_k` likeliest."""
    if temperature == 0:
        return logits_BV.argmax(-1)
    logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    if top_k is None:
        return torch.multinomial((logits_BV / temperature).softmax(-1), 1, generator=generator)[:, 0]
    logits_BK, token_BK = logits_BV.topk(top_k)
    drawn_B1 = torch.multinomial((logits_BK / temperature).softmax(-1), 1, generator=generator)
    return token_BK.gather(-1, drawn_B1)[:, 0]
