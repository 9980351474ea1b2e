"""A whole layer of Linformer, projections included, against the linformer package's, on the same weights."""

from collections.abc import Iterator

import torch
from linformer import LinformerSelfAttention
from torch import Tensor, nn

import anyformer as af
from anyformer.contract import AttentionLayer
from anyformer.mechanisms.lowrank.linformer import Linformer

from . import HEAD_DIM, HEADS, LENGTHS, Contest, Entrant

DIM, RANK = HEADS * HEAD_DIM, 256


def contests() -> Iterator[Contest]:
    for length in LENGTHS:
        ours = af.build("linformer:headwise", dim=DIM, heads=HEADS, max_length=length, rank=RANK)
        theirs = LinformerSelfAttention(DIM, seq_len=length, k=RANK, heads=HEADS)
        alike(ours, theirs)
        yield Contest(
            "linformer:headwise",
            f"a layer, rank {RANK}",
            {"length": length},
            (torch.randn(1, length, DIM, generator=torch.Generator().manual_seed(length)),),
            {
                "anyformer": Entrant(ours, module=ours),
                "linformer": Entrant(theirs, module=theirs),
            },
            # q and out of every token; E x and F x, of which k and v are the projections; q.k and weight.v
            operations=4.0 * length * DIM * DIM + 4.0 * RANK * DIM * (length + DIM) + 4.0 * length * RANK * DIM,
            moved=4.0 * (2 * length * DIM + 4 * DIM * DIM + 2 * RANK * length),
        )


@torch.no_grad()
def alike(ours: nn.Module, theirs: LinformerSelfAttention) -> None:
    """Their weights in our layer; they have a bias only after the last projection, and here none."""
    assert isinstance(ours, AttentionLayer)
    assert isinstance(ours.core, Linformer)
    assert ours.core.F is not None
    theirs.to_out.bias = None
    pairs: list[tuple[Tensor, Tensor]] = [
        (ours.q.weight, theirs.to_q.weight),
        (ours.k.weight, theirs.to_k.weight),
        (ours.v.weight, theirs.to_v.weight),
        (ours.out.weight, theirs.to_out.weight),
        (ours.core.E, theirs.proj_k.T),
        (ours.core.F, theirs.proj_v.T),
    ]
    for mine, other in pairs:
        mine.copy_(other)
