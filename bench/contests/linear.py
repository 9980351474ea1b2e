"""Linear attention against performer-pytorch, linear-attention-transformer and plain torch."""

from collections.abc import Iterator

import torch
from linear_attention_transformer.linear_attention_transformer import causal_linear_attn
from performer_pytorch.performer_pytorch import linear_attention
from torch import Tensor
from torch.nn.functional import elu

import anyformer as af

from . import HEAD_DIM, HEADS, Contest, Entrant, moved_by_attention, over_lengths

CHUNK = 128


def phi(x: Tensor) -> Tensor:
    return elu(x) + 1


def performer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linear_attention(phi(q), phi(k), v)


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    fq, fk = phi(q), phi(k)
    return fq @ (fk.mT @ v) / (fq @ fk.sum(2, keepdim=True).mT)


def chunked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All chunks at once: sums before each by cumsum, a masked product inside each."""
    fq, fk, v = (t.unflatten(2, (-1, CHUNK)) for t in (phi(q), phi(k), v))
    kv = torch.nn.functional.pad((fk.mT @ v).cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
    z = torch.nn.functional.pad(fk.sum(3, keepdim=True).cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
    within = (fq @ fk.mT).tril()
    return ((within @ v + fq @ kv) / (within.sum(-1, keepdim=True) + fq @ z.mT)).flatten(2, 3)


def bucketed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return causal_linear_attn(q, k, v.clone() if v.requires_grad else v, bucket_size=64)


def contests() -> Iterator[Contest]:
    for causal in (False, True):
        core = af.core("linear", heads=HEADS, head_dim=HEAD_DIM, causal=causal)
        peers = (
            {
                "linear-attention-transformer": Entrant(bucketed, "softmax features, only earlier buckets of 64"),
                "chunked eager torch": Entrant(chunked),
            }
            if causal
            else {"performer-pytorch": Entrant(performer), "eager torch": Entrant(eager)}
        )
        for length, qkv in over_lengths():
            yield Contest(
                "linear",
                "causal" if causal else "full",
                {"length": length},
                qkv,
                {"anyformer": Entrant(core.attend), **peers},
                # each token adds phi(k) w^T to S and reads phi(q) S, with w one wider than the value
                operations=4.0 * length * HEADS * HEAD_DIM * (HEAD_DIM + 1),
                moved=moved_by_attention(length),
            )
