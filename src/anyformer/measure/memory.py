"""The true peak of memory, with what kernels take and give back inside."""

import ctypes
import gc
import os
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would write two lines for each measurement


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes held at once during `run` beyond what was held before it.

    On a CPU: every allocation and release of torch's allocator, in order. Gradients that an earlier
    pass left behind hide part of the peak if `run` releases them: drop them first.
    """
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(profile_memory=True) as profiled:
        run()
    events: Any = profiled.kineto_results.events()  # raw: summing up every operation would take ten times as long
    changes = sorted((e.start_ns(), n, e.nbytes()) for n, e in enumerate(events) if e.name() == "[memory]")
    return max(accumulate((size for *_, size in changes), initial=0))


def high_water_bytes(run: Callable[[], object]) -> int | None:
    """The same as the process's high-water mark tells it; None where there is no such mark (it needs Linux)."""
    status = Path("/proc/self/status")
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what is free but still the process's would hide part of the peak
        Path("/proc/self/clear_refs").write_text("5")
        before = kibibytes(status, "VmRSS")
        run()
        return 1024 * (kibibytes(status, "VmHWM") - before)
    except (OSError, AttributeError, StopIteration):
        return None


def kibibytes(status: Path, name: str) -> int:
    return int(next(line for line in status.read_text().splitlines() if line.startswith(f"{name}:")).split()[1])
