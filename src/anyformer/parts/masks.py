"""Which keys a query sees."""

import torch
from torch import Tensor


def seen(
    queries: int,
    keys: int,
    *,
    causal: bool,
    device: torch.device,
    keep_BM: Tensor | None = None,
    window: int | None = None,
    last: int | None = None,
) -> Tensor:
    """True where a query sees a key, broadcastable to (B, H, N, M).

    The queries are positions last-N .. last-1 of the keys' positions 0 .. M-1; `last` is M unless given.
    Within a window, a query sees keys at a distance below it.
    """
    stop = keys if last is None else last
    ahead_NM = torch.arange(stop - queries, stop, device=device)[:, None] - torch.arange(keys, device=device)[None, :]
    seen_NM = ahead_NM >= 0 if causal else torch.ones_like(ahead_NM, dtype=torch.bool)
    if window is not None:
        seen_NM &= ahead_NM.abs() < window
    return seen_NM if keep_BM is None else seen_NM & keep_BM[:, None, None, :]


def pairs(queries: int, keys: int, *, causal: bool, window: int | None = None) -> int:
    """How many pairs of a query and a key `seen` has."""
    window = keys if window is None else window
    positions = range(keys - queries, keys)
    return sum(min(n + 1, window) + (0 if causal else min(keys - 1 - n, window - 1)) for n in positions)
