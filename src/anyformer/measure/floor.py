"""The machine's own limits, and how far a measured time is from them."""

from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.measure.time import rounds

SIDE = 2048  # of the square matrices multiplied
COPIED = 64 << 20  # bytes, more than the caches hold


class Limits(NamedTuple):
    """What this machine can do at best, in float32 unless another dtype was asked for."""

    operations_per_second: float  # of a product of matrices
    bytes_per_second: float  # read and written while copying

    def floor(self, operations: float, moved: float) -> float:
        """Seconds that no implementation can beat: the larger of computing and of moving."""
        return max(operations / self.operations_per_second, moved / self.bytes_per_second)


def limits(*, dtype: torch.dtype = torch.float32, device: str = "cpu", seconds: float = 1.0) -> Limits:
    """Measured now: the fastest round counts, since limits are what was reached at all."""
    a, b, product = (torch.randn(SIDE, SIDE, device=device).to(dtype) for _ in range(3))
    source, target = (torch.zeros(COPIED, dtype=torch.uint8, device=device) for _ in range(2))
    taken = rounds(
        {"product": lambda: torch.mm(a, b, out=product), "copy": lambda: target.copy_(source)}, seconds=seconds
    )
    return Limits(2 * SIDE**3 / min(taken["product"]), 2 * COPIED / min(taken["copy"]))


def moved_bytes(*tensors: Tensor) -> int:
    """Bytes of inputs and outputs, each moved once."""
    return sum(t.numel() * t.element_size() for t in tensors)
