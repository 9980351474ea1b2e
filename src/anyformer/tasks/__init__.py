"""What a model is trained on: batches, a loss and a score."""

from typing import Any, Protocol

from torch import Tensor, nn

Batch = dict[str, Tensor]  # the first axis of every tensor counts the items


class Task(Protocol):
    """All that the training loop asks of a task."""

    @property
    def unit(self) -> str:
        """What the loss counts, for throughput: tokens, images."""

    @property
    def what(self) -> dict[str, Any]:
        """The task's name and all its options, as a record holds them."""

    def batch(self, step: int) -> Batch:
        """The batch of a step, on the CPU; the same one whenever it is asked for."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int, dict[str, float]]:
        """Calls the model once: the sum of the losses, how many they are, and other sums over as many."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Scores on items that are not for training; the model is in eval mode and builds no graph."""
