"""Computing in at least float32, whatever comes in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def precision(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def precise(*tensors: Tensor) -> list[Tensor]:
    return [t.to(precision(t)) for t in tensors]


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    device = like.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)
