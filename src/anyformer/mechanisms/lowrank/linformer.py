"""Linformer: softmax over k mixtures of the keys and of the values, mixed along the length by learned matrices.

Paper    Wang et al. 2020, Linformer: Self-Attention with Linear Complexity, arXiv:2006.04768, eq. 7
         head_h = softmax((Q W_h^Q) (E_h K W_h^K)^T / sqrt(D)) F_h V W_h^V
         section 4, sharing: headwise, E_h = E and F_h = F; key-value, E_h = F_h = E; layerwise, one E for all layers
Symbols  k -> rank, n -> max_length; E and F are stored (heads,) k x n, and M keys take their first M columns.
         Sharing over layers is assigning: `core_b.E = core_a.E` (and F) between cores of the same options
Shapes   B batch, H heads, N queries, M keys, D key dim, E value dim, K rank, C heads side by side
Differs  any length up to max_length, and cross-attention; padded keys and values are zero before E and F, where the
         authors ignore the mask, so padding on the right is a shorter input, and the softmax over the K slots needs
         no mask. All keys are mixed before any query comes, so there is no causal form. E and F start uniform within
         sqrt(3 / (n + k)), the authors' Xavier with gain 1 / sqrt(2); the paper's proof draws normal ones
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from anyformer.card import Card
from anyformer.contract import Attention, check_same, require_positive


class Short(NamedTuple):
    """A context prepared for cross-attention: K keys and values, whatever its length."""

    k_BHKD: Tensor
    v_BHKE: Tensor


class Linformer(Attention):
    card = Card(
        title="low-rank attention",
        paper="Wang et al. 2020, Linformer: Self-Attention with Linear Complexity, arXiv:2006.04768",
        year=2020,
        causal="no",
        cross=True,
        padding=True,
        stream="none",
        state="none",
        time=1,
        memory=1,
        price="Tied to a maximum length and never causal: keys and values are mixed down to a fixed number by "
        "learned weights.",
        order=True,
        compiles=True,
        tiny={"dim": 16, "heads": 2, "rank": 7, "max_length": 80},
        variants={
            "headwise": {"sharing": "headwise"},
            "key_value": {"sharing": "key_value"},
            "none": {"sharing": "none"},
        },
        limits=({"weights": "identity", "rank": 6, "max_length": 6},),
    )

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        causal: bool = False,
        max_length: int,
        rank: int = 256,
        sharing: Literal["headwise", "key_value", "none"] = "headwise",
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, causal=causal)
        require_positive(max_length=max_length, rank=rank)
        if sharing not in self.card.variants:
            raise ValueError(f"sharing is one of {', '.join(self.card.variants)}, not {sharing!r}")
        self.max_length, self.rank, self.sharing = max_length, rank, sharing
        shape = (heads, rank, max_length) if sharing == "none" else (rank, max_length)
        self.E = nn.Parameter(torch.empty(shape))
        self.F = None if sharing == "key_value" else nn.Parameter(torch.empty(shape))
        bound = (3 / (max_length + rank)) ** 0.5
        for projection in self.parameters():
            nn.init.uniform_(projection, -bound, bound)

    def formula(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        E, F = self.projections(k)
        score_BHNK = q @ (E @ k).transpose(-1, -2) / self.head_dim**0.5
        return score_BHNK.softmax(-1) @ (F @ v)

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        return self.read(q, self.shorten(k, v))

    def hold(self, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Short:
        nobody = k_BHMD.new_zeros(k_BHMD.shape[0], self.heads, 1, self.head_dim)
        _, k, v = self.checked(nobody, k_BHMD, v_BHME, keep_BM)
        return self.shorten(k, v)

    def read(self, q_BHND: Tensor, held: Short) -> Tensor:
        return scaled_dot_product_attention(q_BHND, held.k_BHKD, held.v_BHKE)

    def shorten(self, k_BHMD: Tensor, v_BHME: Tensor) -> Short:
        E, F = self.projections(k_BHMD)
        return Short(mixed(E, k_BHMD), mixed(F, v_BHME))

    def premix(self, context_BMC: Tensor, k: Callable[[Tensor], Tensor], v: Callable[[Tensor], Tensor]) -> Short | None:
        """E (x W) = (E x) W where all heads have the same E: the authors' order."""
        if self.sharing == "none" or context_BMC.shape[1] <= self.rank:
            return None
        x_B1MC = context_BMC[:, None]
        E, F = self.projections(x_B1MC)
        Ex_B1KC = mixed(E, x_B1MC)
        Fx_B1KC = Ex_B1KC if self.F is None else mixed(F, x_B1MC)
        return Short(every_head(k(Ex_B1KC[:, 0]), self.heads), every_head(v(Fx_B1KC[:, 0]), self.heads))

    def projections(self, k_BHMD: Tensor) -> tuple[Tensor, Tensor]:
        """E and F for so many keys: (H,) K x M."""
        keys = k_BHMD.shape[2]
        if keys > self.max_length:
            raise ValueError(f"max_length={self.max_length} is too short for {keys} keys; build with a larger one")
        check_same("k", k_BHMD, "E", self.E)
        F = self.E if self.F is None else self.F
        if keys == self.max_length:  # the gradient of a slice is one more copy
            return self.E, F
        return self.E[..., :keys], F[..., :keys]

    def least(self, queries: int, keys: int) -> float:
        return 4.0 * self.heads * self.head_dim * self.rank * (keys + queries)  # E k and F v; q.k and weight.v

    def projected(self, keys: int) -> int:
        return keys if self.sharing == "none" else min(keys, self.rank)

    def extra_repr(self) -> str:
        return f"rank={self.rank}, max_length={self.max_length}, sharing={self.sharing}"


def mixed(E: Tensor, x_BHMD: Tensor) -> Tensor:
    """E x, with the widest products that need no copy of E."""
    batch, heads = x_BHMD.shape[:2]
    if E.dim() == 2:  # all heads side by side, as the layer's projection left them
        x_BMC = x_BHMD.transpose(1, 2).flatten(2)
        return torch.bmm(E[None].expand(batch, -1, -1), x_BMC).unflatten(2, (heads, -1)).transpose(1, 2)
    x_HMC = x_BHMD.permute(1, 2, 0, 3).flatten(2)  # all items side by side
    return torch.bmm(E, x_HMC).unflatten(2, (batch, -1)).permute(2, 0, 1, 3)


def every_head(k_BGKD: Tensor, heads: int) -> Tensor:
    share = heads // k_BGKD.shape[1]
    return k_BGKD if share == 1 else k_BGKD.repeat_interleave(share, 1)


@torch.no_grad()
def identity(core: Linformer) -> None:
    """k = n with the identity: the keys and values stay as they are."""
    for projection in core.parameters():
        projection.copy_(torch.eye(core.rank, core.max_length))
