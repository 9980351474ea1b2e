"""Law 7: operations and peak memory grow with the length as the card says."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log2
from typing import Any

import torch
from torch import Tensor

from anyformer.laws.subject import Subject
from anyformer.measure.memory import peak_bytes
from anyformer.measure.operations import Count, Fused, tensors

LONG = (1_024, 8_192, 65_536)  # counted on meta tensors
SHORT = (1_024, 4_096, 16_384)  # really run: a bit for each pair of tokens shows; squares of grids are alike
SHORTER = (2_048, 4_096, 8_192)  # where time is quadratic
SLACK = 0.15


def claimed(subject: Subject) -> bool:
    return subject.catalogued


def check(subject: Subject) -> None:
    for causal in subject.orders:
        counts = [counted(training_step(subject, causal, length, "meta")) for length in LONG]
        power(LONG, counts, subject.card.time, f"causal={causal}: operations grow")
        with old_objects_set_aside():
            lengths = SHORT if subject.card.time < 2 else SHORTER
            peaks = [peak_bytes(training_step(subject, causal, length, "cpu")) for length in lengths]
        power(lengths, peaks, subject.card.memory, f"causal={causal}: peak memory grows")


def training_step(subject: Subject, causal: bool, length: int, device: str) -> Callable[[], None]:
    layer = subject.layer(causal, torch.float32, training=True, device=device, length=length)
    x = torch.empty(1, length, subject.dim, device=device).fill_(0.1).requires_grad_()
    return lambda: layer(x).sum().backward()


def power(lengths: tuple[int, int, int], values: list[int], claim: float, what: str) -> None:
    """Each length is r times the one before, so a + b N^p grows by r^p times what it grew by before, whatever a is."""
    shorter, middle, longer = values
    found = log2((longer - middle) / (middle - shorter)) if longer > middle > shorter else 0.0
    found /= log2(lengths[1] / lengths[0])
    assert abs(found - claim) <= SLACK, f"{what} as N^{found:.2f}, and the card says N^{claim:g}"


@contextmanager
def old_objects_set_aside() -> Iterator[None]:
    """Before each measurement garbage is collected, which looks at all that was ever imported, unless it is frozen."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def counted(run: Callable[[], None]) -> int:
    with Fused(), Remembered() as count:
        run()
    return count.total


class Remembered(Count):
    """On `meta` an operation only works out a shape, slowly; blocks of rows ask for the same ones again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Any, tuple[int, tuple[Any, ...] | None]] = {}  # operations, and the shape of what is new

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op.is_view:
            return op(*args, **kwargs)
        key = op, described(args), described(kwargs)
        try:
            found = self.known.get(key)
        except TypeError:  # an argument that cannot be hashed
            return super().__torch_dispatch__(op, types, args, kwargs)
        if found is not None:
            self.total += found[0]
            return overwritten(op, args, kwargs) if found[1] is None else empty(*found[1])
        before = self.total
        out = super().__torch_dispatch__(op, types, args, kwargs)
        if isinstance(out, Tensor) and out.is_meta:
            new = out.untyped_storage()._cdata not in (t.untyped_storage()._cdata for t in tensors((args, kwargs)))
            if new or out is overwritten(op, args, kwargs):
                shape = (out.shape, out.stride(), out.dtype) if new else None
                self.known[key] = self.total - before, shape
        return out


def empty(shape: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def overwritten(op: Any, args: Any, kwargs: Any) -> Any:
    """What an operation in place, or into out=, returns, unless it gives it another shape."""
    if not op._schema.is_mutable or torch.Tag.inplace_view in op.tags:
        return None
    return kwargs["out"] if "out" in kwargs else args[0]


def described(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, dict):
        return tuple((name, described(entry)) for name, entry in value.items())
    return tuple(map(described, value)) if isinstance(value, list | tuple) else (type(value), value)
