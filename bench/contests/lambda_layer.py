"""A whole lambda layer on images, in training mode (batch statistics), against lambda-networks' and timm's.

Ours takes tokens, theirs images: each gets its own layout, contiguous. The weights differ, the shapes do not.
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from lambda_networks import LambdaLayer as LambdaNetworks
from torch import Tensor

import anyformer as af

from . import Contest, Entrant

try:  # the wheel is built for CUDA; timm needs it to import, and two of its operators need only be declared
    import torchvision  # noqa: F401
except RuntimeError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    LIBRARY = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from timm.layers.lambda_layer import LambdaLayer as Timm

DIM, HEADS, KEY_DEPTH, WINDOW = 256, 4, 16, 7
VALUE_DEPTH = DIM // HEADS
BATCHES = (8, 32)


def contests() -> Iterator[Contest]:
    for side in (16, 32):
        yield from on_images("local2d", side, {"window": WINDOW}, {"r": WINDOW}, {"r": WINDOW})
    yield from on_images("global2d", 16, {}, {"n": 16}, {"r": None, "feat_size": (16, 16)})


def on_images(
    variant: str, side: int, ours: dict[str, Any], networks: dict[str, Any], timm: dict[str, Any]
) -> Iterator[Contest]:
    grid = (side, side)
    layer = af.build(f"lambda_layer:{variant}", dim=DIM, heads=HEADS, key_depth=KEY_DEPTH, grid=grid, **ours)
    lucidrains = LambdaNetworks(DIM, heads=HEADS, dim_k=KEY_DEPTH, **networks)
    wightman = Timm(DIM, num_heads=HEADS, dim_head=KEY_DEPTH, **timm)
    window = ours.get("window", 2 * side - 1)
    projected = HEADS * KEY_DEPTH + KEY_DEPTH + VALUE_DEPTH
    for batch in BATCHES:
        x = torch.randn(batch, side * side, DIM, generator=torch.Generator().manual_seed(side))
        tokens = batch * side * side

        def run(x: Tensor, image: Tensor) -> Tensor:
            return layer(x)

        def run_networks(x: Tensor, image: Tensor) -> Tensor:
            return lucidrains(image)

        def run_timm(x: Tensor, image: Tensor) -> Tensor:
            return wightman(image)

        yield Contest(
            f"lambda_layer:{variant}",
            f"a layer, {window} x {window}" if ours else "a layer",
            {"batch": batch, "side": side},
            (x, x.mT.unflatten(2, grid).contiguous()),
            {
                "anyformer": Entrant(run, module=layer),
                "lambda-networks": Entrant(run_networks, module=lucidrains),
                "timm": Entrant(run_timm, module=wightman),
            },
            # q, k and v; the content lambda, and every head's query through it; for each pair and head q.e and its
            # product with v, which are fewer than those of a position lambda: H (K + V) < K V
            operations=2.0 * tokens * (DIM * projected + KEY_DEPTH * VALUE_DEPTH * (1 + HEADS))
            + 2.0 * batch * pairs(side, window) * HEADS * (KEY_DEPTH + VALUE_DEPTH),
            moved=4.0 * (2 * tokens * DIM + DIM * projected),
        )


def pairs(side: int, window: int) -> int:
    """Of positions of a square image that are in one neighbourhood."""
    reach = window // 2
    return sum(min(side, n + reach + 1) - max(0, n - reach) for n in range(side)) ** 2
