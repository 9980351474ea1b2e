"""Linear attention: softmax's kernel becomes phi(q).phi(k) with phi(x) = elu(x) + 1, so sums factor out.

Paper    Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, eq. 4-12 and 16-20
         y_i = phi(q_i).sum_j phi(k_j) v_j^T / phi(q_i).sum_j phi(k_j)      (j <= i when causal)
Symbols  sum_j phi(k_j) v_j^T -> S and sum_j phi(k_j) -> z (the paper's s and z): the state of the recurrent form
Shapes   B batch, H heads, N queries, M keys, D key dim, E value dim
Differs  the sums of parts/sums.py run block by block, in causal order too, where the authors step token by token in
         a CUDA kernel. No epsilon under the fraction: a query without keys gives zero
"""

import torch
from torch import Tensor

from anyformer.card import Card
from anyformer.parts.masks import seen
from anyformer.parts.room import Room
from anyformer.parts.sums import FeatureAttention, FeatureMap, divided


def phi(x: Tensor) -> Tensor:
    return torch.nn.functional.elu(x) + 1  # eq. 7


class Linear(FeatureAttention):
    card = Card(
        title="linear attention",
        paper="Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236",
        year=2020,
        causal="option",
        cross=True,
        padding=True,
        stream="exact",
        state="constant",
        time=1,
        memory=1,
        price="Another function than softmax, without its sharp choice of single tokens: models are trained with "
        "it, not moved to it.",
        block=64,
    )

    def formula(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        sees = seen(q.shape[2], k.shape[2], causal=self.causal, device=q.device, keep_BM=keep_BM)
        weight_BHNM = phi(q) @ phi(k).transpose(-1, -2) * sees  # eq. 4 with sim = phi.phi
        return divided(weight_BHNM @ v, weight_BHNM.sum(-1, keepdim=True))

    @property
    def phi(self) -> FeatureMap:
        return EluPlusOne(self.head_dim)


class EluPlusOne(FeatureMap):
    """elu(x) + 1 = exp(min(x, 0)) + max(x, 0), which stays accurate where exp(x) is far below 1."""

    def __init__(self, features: int) -> None:
        self.features = features

    def raw(self, x: Tensor, out: Tensor, room: Room, *, query: bool) -> None:
        torch.clamp(x, max=0, out=out).exp_().add_(torch.clamp(x, min=0, out=room("spare", *x.shape)))

    def pull(self, df: Tensor, f: Tensor, x: Tensor, room: Room, *, query: bool) -> Tensor:
        return df.mul_(torch.clamp(f, max=1, out=room("spare", *f.shape)))
