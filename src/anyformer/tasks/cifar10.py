"""CIFAR-10: which of ten classes does a small image show?

Paper    Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images
Setting  pad by 4, crop, flip, normalise; every epoch has each training image once, and the whole test set is scored
Shapes   B batch, N test images, C channels, H rows, W columns, K classes
"""

from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from anyformer.data.cifar10 import CLASSES, MEAN, STD, Split, digest
from anyformer.data.images import Ahead, crop, mirror, normalise, resize
from anyformer.tasks import Batch

ORDER, CHANGES = 0, 1  # streams of random numbers


@final
class Cifar10:
    """For a model that is called as `model(images)`, (B, C, size, size) -> (B, K).

    Every batch is a function of the seed and the step. The last one of an epoch has the images that are left.
    `padding=0` leaves the images where they are, `flip=False` as they are. A thread makes the next batches during
    a step; `waiting` is the share of the time, from the first batch to the latest, that was spent waiting for them.
    """

    unit = "images"

    def __init__(
        self,
        train: Split,
        test: Split,
        *,
        batch_size: int,
        padding: int = 4,
        flip: bool = True,
        size: int = 32,
        seed: int = 0,
    ) -> None:
        for name, (images, labels) in (("train", train), ("test", test)):
            if images.dtype != np.uint8 or images.shape != (len(labels), 32, 32, 3) or not len(labels):
                raise ValueError(
                    f"{name} must be uint8 images (N, 32, 32, 3) and N labels, at least one, "
                    f"not {images.dtype} {images.shape} and {len(labels)}"
                )
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("padding", padding, 0),
            ("size", size, 1),
            ("seed", seed, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        self.train, self.test, self.batch_size, self.padding = train, test, batch_size, padding
        self.flip, self.size, self.seed = flip, size, seed
        self.steps_per_epoch = -(-len(train.labels) // batch_size)
        self.ahead = Ahead(self.draw)

    @property
    def what(self) -> dict[str, Any]:
        data = {
            name: {"images": len(split.labels), "sha256": digest(split)}
            for name, split in (("train", self.train), ("test", self.test))
        }
        options = {name: vars(self)[name] for name in ("batch_size", "padding", "flip", "size", "seed")}
        return {"task": type(self).__name__, **data, **options}

    @property
    def waiting(self) -> float:
        return self.ahead.share

    def batch(self, step: int) -> Batch:
        return self.ahead(step)

    def draw(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng((self.seed, ORDER, epoch)).permutation(len(self.train.labels))
        chosen_B = order[place * self.batch_size : (place + 1) * self.batch_size]
        drawn = np.random.default_rng((self.seed, CHANGES, step))
        top_B, left_B = drawn.integers(2 * self.padding, size=(2, len(chosen_B)), endpoint=True)
        images_BCHW = crop(self.train.images[chosen_B], top_B, left_B, self.padding)
        images_BCHW = mirror(images_BCHW, drawn.random(len(chosen_B)) < 0.5 * self.flip)
        labels_B = self.train.labels[chosen_B].astype(np.int64)
        return {"images": torch.from_numpy(np.ascontiguousarray(images_BCHW)), "labels": torch.from_numpy(labels_B)}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int, dict[str, float]]:
        """Cross-entropy in nats; an image is right if its class has the highest score."""
        logits_BK, labels_B = model(self.prepared(batch["images"])), batch["labels"]
        right = int((logits_BK.argmax(-1) == labels_B).sum())
        return cross_entropy(logits_BK, labels_B, reduction="sum"), len(labels_B), {"accuracy": right}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        logits_NK, labels_N = self.test_logits(model), torch.from_numpy(self.test.labels.astype(np.int64))
        right = confusion(logits_NK, labels_N).diagonal().sum().item()
        return {"loss": cross_entropy(logits_NK, labels_N).item(), "accuracy": right / len(labels_N)}

    def test_logits(self, model: nn.Module) -> Tensor:
        """(N, K), on the CPU; as for `evaluate`, the model is in eval mode and builds no graph."""
        device = next(model.parameters()).device
        found = []
        for begin in range(0, len(self.test.labels), self.batch_size):
            images_BHWC = self.test.images[begin : begin + self.batch_size]
            images_BCHW = torch.from_numpy(np.array(images_BHWC.transpose(0, 3, 1, 2), order="C"))
            found.append(model(self.prepared(images_BCHW.to(device))).float().cpu())
        return torch.cat(found)

    def prepared(self, images_BCHW: Tensor) -> Tensor:
        """On the device, and normalised while they are small: resizing afterwards gives the same."""
        return resize(normalise(images_BCHW, MEAN, STD), self.size)


def confusion(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """How many images of each class (row) are taken for each class (column)."""
    classes = len(CLASSES)
    return torch.bincount(labels_N * classes + logits_NK.argmax(-1), minlength=classes**2).view(classes, classes)
