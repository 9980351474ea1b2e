"""Performer against performer-pytorch and the same formula in plain torch, all on one projection."""

from collections.abc import Iterator
from functools import partial

import torch
from performer_pytorch import performer_pytorch as theirs
from torch import Tensor

import anyformer as af
from anyformer.mechanisms.kernel.performer import Performer

from . import HEAD_DIM, HEADS, Contest, Entrant, moved_by_attention, over_lengths

FEATURES = 256
CHUNK = 128
LONGEST = 2048  # that performer-pytorch's causal order is given: it keeps every token's sums
EPSILON = "1e-4 is added to the features, which outweighs them at this size"
LEAKS = "the maximum is of all keys, so the future leaks"


def features(W_PD: Tensor, x: Tensor, *, query: bool) -> Tensor:
    """FAVOR+ literally: under a maximum of each query, or of all keys, which the fraction cancels."""
    x = x / HEAD_DIM**0.25
    exponent = x @ W_PD.T - x.square().sum(-1, keepdim=True) / 2
    return (exponent - exponent.detach().amax(-1 if query else (-1, -2), keepdim=True)).exp()


def relu_features(W_PD: Tensor, x: Tensor, *, query: bool) -> Tensor:
    return (x / HEAD_DIM**0.25 @ W_PD.T).relu() + 1e-3


def eager(core: Performer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    fq, fk = both(core, q, k)
    return fq @ (fk.mT @ v) / (fq @ fk.sum(2, keepdim=True).mT)


def chunked(core: Performer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All chunks at once: sums before each by cumsum, a masked product inside each."""
    fq, fk, v = (t.unflatten(2, (-1, CHUNK)) for t in (*both(core, q, k), v))
    kv = torch.nn.functional.pad((fk.mT @ v).cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
    z = torch.nn.functional.pad(fk.sum(3, keepdim=True).cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
    within = (fq @ fk.mT).tril()
    return ((within @ v + fq @ kv) / (within.sum(-1, keepdim=True) + fq @ z.mT)).flatten(2, 3)


def both(core: Performer, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    assert core.projection_PD is not None
    of = relu_features if core.kind == "relu" else features
    return of(core.projection_PD, q, query=True), of(core.projection_PD, k, query=False)


def fast_attention(core: Performer) -> theirs.FastAttention:
    """Theirs with our projection."""
    fast = theirs.FastAttention(HEAD_DIM, nb_features=FEATURES, generalized_attention=core.kind == "relu")
    fast.projection_matrix.copy_(core.projection_PD)
    if core.causal:  # set by hand: causal=True looks for a compiled extension and says so if there is none
        fast.causal, fast.causal_linear_fn = True, theirs.causal_linear_attention_noncuda
    return fast


def contests() -> Iterator[Contest]:
    for kind, causal in (("positive", False), ("relu", False), ("positive", True)):
        core = af.core(f"performer:{kind}", heads=HEADS, head_dim=HEAD_DIM, causal=causal, features=FEATURES)
        assert isinstance(core, Performer)
        differs = [EPSILON] * (kind == "positive") + [LEAKS] * causal
        package = Entrant(fast_attention(core), "; ".join(differs))
        plain = Entrant(partial(chunked, core), LEAKS) if causal else Entrant(partial(eager, core))
        for length, qkv in over_lengths():
            beside = {"chunked eager torch" if causal else "eager torch": plain}
            if not causal or length <= LONGEST:
                beside = {"performer-pytorch": package, **beside}
            yield Contest(
                f"performer:{kind}",
                f"{'causal' if causal else 'full'}, {FEATURES} features",
                {"length": length},
                qkv,
                {"anyformer": Entrant(core.attend), **beside},
                # W q and W k; each token adds phi(k) w^T to S and reads phi(q) S, with w one wider than the value
                operations=4.0 * length * HEADS * FEATURES * (HEAD_DIM + HEAD_DIM + 1),
                moved=moved_by_attention(length),
            )
