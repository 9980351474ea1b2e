"""Softmax attention against torch's fused attention called directly."""

from collections.abc import Iterator

from torch.nn.functional import scaled_dot_product_attention

import anyformer as af

from . import HEAD_DIM, HEADS, Contest, Entrant, moved_by_attention, over_lengths


def contests() -> Iterator[Contest]:
    for causal in (False, True):
        core = af.core("softmax", heads=HEADS, head_dim=HEAD_DIM, causal=causal)

        def fused(q, k, v, causal=causal):  # type: ignore[no-untyped-def]
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

        for length, qkv in over_lengths():
            pairs = length * (length + 1) / 2 if causal else length**2
            yield Contest(
                "softmax",
                "causal" if causal else "full",
                {"length": length},
                qkv,
                {"anyformer": Entrant(core.attend), "torch's fused attention": Entrant(fused)},
                operations=4.0 * pairs * HEADS * HEAD_DIM,  # q.k and weight.v
                moved=moved_by_attention(length),
            )
