"""Whole batches of images: changed at random, prepared for a model, and made before they are asked for.

Shapes   N images, H rows, W columns, C channels
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

T = TypeVar("T")
Array = NDArray[np.uint8]


def crop(images_NHWC: Array, top_N: NDArray[np.int64], left_N: NDArray[np.int64], padding: int) -> Array:
    """As large as before, out of the image with `padding` black pixels around it; (N, C, H, W)."""
    count, height, width, _ = images_NHWC.shape
    around = np.pad(images_NHWC, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    return sliding_window_view(around, (height, width), axis=(1, 2))[np.arange(count), top_N, left_N]


def mirror(images_NCHW: Array, which_N: NDArray[np.bool_]) -> Array:
    """Left and right change places where `which` says so."""
    return np.where(which_N[:, None, None, None], images_NCHW[..., ::-1], images_NCHW)


def normalise(images_NCHW: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """From bytes to floats whose channels have mean 0 and deviation 1, where the images are."""
    mean_C11, std_C11 = torch.tensor((mean, std), device=images_NCHW.device)[..., None, None]
    return images_NCHW.float().div_(255).sub_(mean_C11).div_(std_C11)


def resize(images_NCHW: Tensor, size: int) -> Tensor:
    """Bilinear, to size x size."""
    if images_NCHW.shape[2:] == (size, size):
        return images_NCHW
    return interpolate(images_NCHW, size=(size, size), mode="bilinear", align_corners=False)


class Ahead(Generic[T]):
    """make(0), make(1), ...: while one is in use, a thread makes the next `depth`.

    `make` depends on nothing but its number, so that neither the thread's timing nor the order of asking matters.
    `share` is the part of the time from the first question to the last answer that was spent waiting for answers.
    """

    def __init__(self, make: Callable[[int], T], depth: int = 2) -> None:
        self.make, self.depth = make, depth
        self.thread = ThreadPoolExecutor(1, "anyformer-ahead")
        self.coming: dict[int, Future[T]] = {}
        self.began: float | None = None
        self.lasted = self.waited = 0.0

    def __call__(self, number: int) -> T:
        asked = perf_counter()
        self.began = asked if self.began is None else self.began
        wanted = range(number, number + self.depth + 1)
        for other in self.coming.keys() - set(wanted):
            self.coming.pop(other).cancel()
        for each in wanted:
            if each not in self.coming:
                self.coming[each] = self.thread.submit(self.make, each)
        made = self.coming.pop(number).result()
        answered = perf_counter()
        self.waited += answered - asked
        self.lasted = answered - self.began
        return made

    @property
    def share(self) -> float:
        return self.waited / self.lasted if self.lasted else 0.0
