"""Softmax attention: every query weighs every key by the exponential of their scaled product.

Paper    Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762, eq. 1
         y_i = sum_j exp(q_i.k_j / sqrt(D)) v_j / sum_j exp(q_i.k_j / sqrt(D))      (j <= i when causal)
Shapes   B batch, H heads, N queries, M keys, D key dim, E value dim
Differs  the fast form is torch's fused attention, which never holds the N x M weights; it needs an explicit
         N x M mask when causal queries are fewer than the keys, or when causal meets padding
"""

from torch import Tensor, finfo
from torch.nn.functional import scaled_dot_product_attention

from anyformer.card import Card
from anyformer.contract import Attention
from anyformer.parts.masks import pairs, seen


class Softmax(Attention):
    card = Card(
        title="softmax attention",
        paper="Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762",
        year=2017,
        causal="option",
        cross=True,
        padding=True,
        stream="exact",
        state="growing",
        time=2,
        memory=1,
        price="Nothing is approximated; its time grows with the square of the length, and a cache with every token.",
        compiles=True,
    )

    def formula(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        sees = seen(q.shape[2], k.shape[2], causal=self.causal, device=q.device, keep_BM=keep_BM)
        score_BHNM = q @ k.transpose(-1, -2) / self.head_dim**0.5
        weight_BHNM = score_BHNM.masked_fill(~sees, finfo(q.dtype).min).softmax(-1) * sees
        return weight_BHNM @ v

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        queries, keys = q.shape[2], k.shape[2]
        ordered = self.causal and queries > 1  # a single query is the last position and sees everything
        sees = None if keep_BM is None else keep_BM[:, None, None, :]
        if ordered and (queries < keys or keep_BM is not None):
            sees = seen(queries, keys, causal=True, device=q.device, keep_BM=keep_BM)
        return scaled_dot_product_attention(q, k, v, attn_mask=sees, is_causal=ordered and sees is None)

    def least(self, queries: int, keys: int) -> float:
        return 4.0 * self.heads * self.head_dim * pairs(queries, keys, causal=self.causal)  # q.k and weight.v
