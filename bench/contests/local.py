"""Sliding-window attention against the local-attention package and torch's fused attention under a mask."""

from collections.abc import Iterator
from typing import Any

import torch
from local_attention import LocalAttention
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import anyformer as af

from . import HEAD_DIM, HEADS, Contest, Entrant, moved_by_attention, over_lengths

WINDOW = 128


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[2]
    ahead = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    return scaled_dot_product_attention(q, k, v, (ahead >= 0) & (ahead < WINDOW))


def contests() -> Iterator[Contest]:
    core = af.core("local", heads=HEADS, head_dim=HEAD_DIM, causal=True, window=WINDOW)
    options: dict[str, Any] = {"causal": True, "autopad": True, "use_rotary_pos_emb": False}
    wider = LocalAttention(window_size=WINDOW, **options)
    exact = LocalAttention(window_size=WINDOW - 1, exact_windowsize=True, **options)
    for length, qkv in over_lengths():
        pairs = WINDOW * length - WINDOW * (WINDOW - 1) / 2
        yield Contest(
            "local",
            f"causal, window {WINDOW}",
            {"length": length},
            qkv,
            {
                "anyformer": Entrant(core.attend),
                "local-attention": Entrant(wider, "the keys of its own bucket of 128 and of the one before"),
                "local-attention, exact window": Entrant(exact),
                "torch's fused attention, masked": Entrant(masked),
            },
            operations=4.0 * pairs * HEADS * HEAD_DIM,
            moved=moved_by_attention(length),
        )
