"""Law 7: operations and peak memory grow with the length as the card says."""

from collections.abc import Callable
from math import log2

import torch

from anyformer.laws.subject import Subject
from anyformer.measure.memory import peak_bytes
from anyformer.measure.operations import operations

LONG = (16_384, 32_768, 65_536)  # counted on meta tensors
SHORT = (2_048, 4_096, 8_192)  # really run
SLACK = 0.15


def claimed(subject: Subject) -> bool:
    return subject.catalogued


def check(subject: Subject) -> None:
    for causal in subject.orders:
        counts = [operations(training_step(subject, causal, length, "meta")) for length in LONG]
        power(counts, subject.card.time, f"causal={causal}: operations grow")
        peaks = [peak_bytes(training_step(subject, causal, length, "cpu")) for length in SHORT]
        power(peaks, subject.card.memory, f"causal={causal}: peak memory grows")


def training_step(subject: Subject, causal: bool, length: int, device: str) -> Callable[[], None]:
    layer = subject.layer(causal, torch.float32, training=True, device=device)
    x = torch.empty(1, length, subject.dim, device=device).fill_(0.1).requires_grad_()
    return lambda: layer(x).sum().backward()


def power(values: list[int], claim: float, what: str) -> None:
    """Each length is twice the one before, so a + b N^p grows by 2^p times what it grew by before, whatever a is."""
    shorter, middle, longer = values
    found = log2((longer - middle) / (middle - shorter)) if longer > middle > shorter else 0.0
    assert abs(found - claim) <= SLACK, f"{what} as N^{found:.2f}, and the card says N^{claim:g}"
