"""Performer: random features whose product is softmax's kernel on average (FAVOR+), or any kernel one likes.

Paper    Choromanski et al. 2020, Rethinking Attention with Performers, arXiv:2009.14794, eq. 4-9
         y_i = phi(q_i).sum_j phi(k_j) v_j^T / phi(q_i).sum_j phi(k_j)      (j <= i when causal)
         phi(x) = h(x) / sqrt(m) (f_1(w_1.x), .., f_1(w_m.x), .., f_l(w_1.x), .., f_l(w_m.x)),  x = q or k, over D^(1/4)
         positive    h(x) = exp(-|x|^2 / 2),            f = exp             E phi(q).phi(k) = exp(q.k), lemma 1
         hyperbolic  h(x) = exp(-|x|^2 / 2) / sqrt(2),  f = exp, exp(- .)   the same with less variance
         relu, exp   h(x) = 1,  f = max(., 0) + epsilon or exp              generalized attention, section 2.2
Symbols  w_1 .. w_m -> projection_PD, orthogonal within each D rows and as long as Gaussian ones (section 2.4)
Shapes   B batch, H heads, N queries, M keys, D key dim, E value dim, P projections, F features
Differs  one projection for all heads, as in the authors' code; `features` counts what phi has, so hyperbolic draws half
         as many projections. Instead of the authors' epsilon and global maxima, which let the future leak, the
         exponentials are shifted by what cancels exactly: see parts/sums.py. Without a projection, relu and exp
         act on x itself
"""

from typing import Literal

import torch
from torch import Generator, Tensor

from anyformer.card import Card
from anyformer.contract import require_bool, require_positive
from anyformer.parts.masks import seen
from anyformer.parts.precision import precise
from anyformer.parts.room import Room
from anyformer.parts.sums import FeatureAttention, FeatureMap, divided


class Performer(FeatureAttention):
    card = Card(
        title="Performer",
        paper="Choromanski et al. 2020, Rethinking Attention with Performers, arXiv:2009.14794",
        year=2020,
        causal="option",
        cross=True,
        padding=True,
        stream="exact",
        state="constant",
        time=1,
        memory=1,
        price="A random estimate of softmax: its error falls as one over the root of the features, and few "
        "features blur.",
        block=64,
        estimator=True,
        tiny={"dim": 16, "heads": 2, "features": 12},
        variants={
            "positive": {"kind": "positive"},
            "hyperbolic": {"kind": "hyperbolic"},
            "relu": {"kind": "relu"},
            "exp": {"kind": "exp"},
        },
        overrides={"relu": {"estimator": False}, "exp": {"estimator": False}},
    )

    projection_PD: Tensor | None

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        causal: bool = False,
        kind: Literal["positive", "hyperbolic", "relu", "exp"] = "positive",
        features: int | None = None,
        orthogonal: bool = True,
        projection: bool = True,
        epsilon: float | None = None,
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, causal=causal)
        if kind not in self.card.variants:
            raise ValueError(f"kind is one of {', '.join(map(repr, self.card.variants))}, not {kind!r}")
        require_bool(orthogonal=orthogonal, projection=projection)
        if not projection:
            if kind in ("positive", "hyperbolic"):
                raise ValueError(f"kind={kind!r} is made of random projections; projection=False is for relu and exp")
            if not orthogonal:
                raise ValueError("orthogonal=False has no effect with projection=False, which draws nothing")
            features = head_dim if features is None else features
        features = 256 if features is None else features
        require_positive(features=features)
        if not projection and features != head_dim:
            raise ValueError(
                f"features={features} contradicts projection=False, with which there are head_dim={head_dim}"
            )
        if kind == "hyperbolic" and features % 2:
            raise ValueError(f"features={features} must be even: each projection gives two hyperbolic features")
        if epsilon is not None and kind != "relu":
            raise ValueError(f"epsilon={epsilon} has no effect on kind={kind!r}: only relu adds one")
        epsilon = 1e-3 if epsilon is None else epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
            raise TypeError(f"epsilon is a number, not {epsilon!r}")
        if not 0 <= epsilon < torch.inf:
            raise ValueError(f"epsilon must be finite and at least 0, not {epsilon}")
        self.kind, self.features, self.orthogonal = kind, features, orthogonal
        self.epsilon = epsilon
        self.register_buffer("projection_PD", None)
        if projection:
            self.projection_PD = self.drawn()

    def redraw(self, generator: Generator | None = None) -> None:
        """New random features; the old ones stay with whoever has still to compute their gradients."""
        if self.projection_PD is None:
            raise ValueError("there is nothing to redraw with projection=False; build with projection=True")
        self.projection_PD = self.drawn(generator).to(self.projection_PD)

    def drawn(self, generator: Generator | None = None) -> Tensor:
        return draw(self.features // (1 + (self.kind == "hyperbolic")), self.head_dim, self.orthogonal, generator)

    def formula(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        sees = seen(q.shape[2], k.shape[2], causal=self.causal, device=q.device, keep_BM=keep_BM)
        weight_BHNM = self.kernel(q, k) * sees
        return divided(weight_BHNM @ v, weight_BHNM.sum(-1, keepdim=True))

    def kernel(self, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
        """phi(q_i).phi(k_j), which estimates exp(q_i.k_j / sqrt(D)) if kind is positive or hyperbolic."""
        return self.features_of(q_BHND) @ self.features_of(k_BHMD).transpose(-1, -2)

    def features_of(self, x_BHND: Tensor) -> Tensor:
        """phi(x), as in eq. 5."""
        x = x_BHND / self.head_dim**0.25
        u = x if self.projection_PD is None else x @ self.projection_PD.to(x.dtype).T
        h = (-x.square().sum(-1, keepdim=True) / 2).exp()
        m = u.shape[-1]
        if self.kind == "positive":
            return h / m**0.5 * u.exp()
        if self.kind == "hyperbolic":
            return h / (2 * m) ** 0.5 * torch.cat([u.exp(), (-u).exp()], -1)
        return (u.relu() + self.epsilon if self.kind == "relu" else u.exp()) / m**0.5

    @property
    def phi(self) -> FeatureMap:
        scale, W_PD = self.head_dim**-0.25, self.projection_PD
        if W_PD is not None:
            (W_PD,) = precise(W_PD)
        if self.kind == "relu":
            return Relu(self.features, W_PD, scale, self.epsilon)
        return Exponential(
            self.features, W_PD, scale, normed=self.kind != "exp", signs=2 if self.kind == "hyperbolic" else 1
        )


def draw(count: int, dim: int, orthogonal: bool, generator: Generator | None) -> Tensor:
    """Gaussian rows; orthogonal ones are turned so within each `dim` of them and keep Gaussian lengths."""
    gaussian = torch.randn(count, dim, generator=generator)
    if not orthogonal:
        return gaussian
    blocks = []
    for _ in range(0, count, dim):
        Q, R = torch.linalg.qr(torch.randn(dim, dim, generator=generator))
        blocks.append(Q * R.diagonal().sign())  # or half of the directions would never come up
    return torch.cat(blocks)[:count] * gaussian.norm(dim=1, keepdim=True)


class Projected(FeatureMap):
    """u(x) = W x, with W scaled by D^(-1/4)."""

    def __init__(self, features: int, W_PD: Tensor | None, scale: float) -> None:
        self.features, self.scale = features, scale
        self.W_PD = None if W_PD is None else W_PD * scale
        self.drawn = 0 if W_PD is None else len(W_PD)

    def project(self, x: Tensor, out: Tensor) -> Tensor:
        if self.W_PD is None:
            return torch.mul(x, self.scale, out=out)
        torch.mm(x.reshape(-1, x.shape[-1]), self.W_PD.to(x.dtype).T, out=out.view(-1, out.shape[-1]))
        return out

    def unproject(self, du: Tensor) -> Tensor:
        return du * self.scale if self.W_PD is None else du @ self.W_PD.to(du.dtype)


class Relu(Projected):
    """phi(x) = max(u, 0) + epsilon"""

    def __init__(self, features: int, W_PD: Tensor | None, scale: float, epsilon: float) -> None:
        super().__init__(features, W_PD, scale)
        self.epsilon = epsilon

    def raw(self, x: Tensor, out: Tensor, room: Room, *, query: bool) -> None:
        self.project(x, out).clamp_(min=0).add_(self.epsilon)

    def pull(self, df: Tensor, f: Tensor, x: Tensor, room: Room, *, query: bool) -> Tensor:
        return self.unproject(df.mul_(f > self.epsilon))


class Exponential(Projected):
    """phi(x) = exp(u - |x|^2 / 2), or without the norm; with two signs, also exp(-u - |x|^2 / 2)."""

    exponential = True

    def __init__(self, features: int, W_PD: Tensor | None, scale: float, *, normed: bool, signs: int) -> None:
        if W_PD is not None and signs == 2:
            W_PD = torch.cat([W_PD, -W_PD])
        super().__init__(features, W_PD, scale)
        self.drawn //= signs
        self.normed = normed

    def raw(self, x: Tensor, out: Tensor, room: Room, *, query: bool) -> None:
        self.project(x, out)
        if self.normed and not query:  # a query's norm cancels
            out.sub_(x.square().sum(-1, keepdim=True).mul_(self.scale**2 / 2))

    def pull(self, df: Tensor, f: Tensor, x: Tensor, room: Room, *, query: bool) -> Tensor:
        du = df.mul_(f)
        dx = self.unproject(du)
        if self.normed and not query:
            dx.addcmul_(x, du.sum(-1, keepdim=True), value=-(self.scale**2))
        return dx
