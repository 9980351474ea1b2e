"""Where tokens stand, as numbers and as vectors.

Shapes   B batch, N tokens, C model dim
"""

import torch
from torch import Tensor


def places(
    tokens_BN: Tensor, *, keep: Tensor | None = None, before: int = 0, padding_B: Tensor | None = None
) -> Tensor:
    """(B or 1, N): real tokens count on from those before, of which `padding_B` were padding, which takes no place."""
    place_BN = torch.arange(before, before + tokens_BN.shape[1], device=tokens_BN.device)[None]
    if keep is not None:
        place_BN = place_BN - (~keep).cumsum(1)
    if padding_B is not None:
        place_BN = place_BN - padding_B[:, None]
    return place_BN.clamp(min=0)


def sinusoids(place_BN: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Vaswani et al. 2017, section 3.5: sines, then cosines, of wavelengths from 2 pi to 10,000 x 2 pi."""
    wide = torch.promote_types(dtype, torch.float32)  # places beyond 256 are no bfloat16
    rate_C = 10_000.0 ** (torch.arange(0, dim, 2, device=place_BN.device, dtype=wide) / -dim)
    angle_BNC = place_BN[..., None] * rate_C
    return torch.cat([angle_BNC.sin(), angle_BNC.cos()], -1).to(dtype)
