"""Whether others used the machine meanwhile: threads that wait for one another then wait for whole time slices."""

import os
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

BOTHER = 0.3  # cores' worth of others beyond the idle cores that make a measurement worthless
UNSURE = 0.05  # seconds by which counters of hundredths may be off


class Reading(NamedTuple):
    at: float
    busy: float  # seconds of all cores together, and of cores that the host gave to somebody else
    own: float


def reading() -> Reading | None:
    """None where the system does not tell: it needs Linux."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, lines[0].split()[1:9])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return Reading(perf_counter(), busy, process_time())


def others(before: Reading | None, after: Reading | None) -> float | None:
    """How many cores somebody else kept busy between two readings."""
    if before is None or after is None:
        return None
    passed = max(after.at - before.at, 1e-6)
    return max(0.0, (after.busy - before.busy) - (after.own - before.own) - UNSURE) / passed


def disturbed(cores_of_others: float | None, threads: int) -> bool:
    """Whether so many cores of others left too few for our threads."""
    if cores_of_others is None:
        return False
    return cores_of_others > max(0, (os.cpu_count() or 1) - threads) + BOTHER
