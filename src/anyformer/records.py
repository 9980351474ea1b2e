"""The evidence format: one JSON object a line, appended by the run itself and never edited.

A record says what ran (every argument), from which commit, with which versions, on which machine, how it ended,
what it measured and the raw repeats behind that. A failed or cancelled run is a record too.
"""

import json
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

SCHEMA = 1
LARGEST_LINE = 64 << 20  # bytes; whatever is longer is no record of ours


@contextmanager
def recording(
    path: Path | None, kind: str, what: dict[str, Any], *, seed: int | None = None, packages: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """A record to fill in (`results`, `repeats`), appended to `path` however the run ends."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": kind,
        "what": what,
        "seed": seed,
        "started": now(),
        **source(),
        "versions": versions(["anyformer", "torch", *packages]),
        "machine": machine(),
        "status": "running",
        "results": [],
        "repeats": {},
    }
    try:
        yield record
        record["status"] = "done"
    except KeyboardInterrupt:
        record["status"] = "cancelled"
        raise
    except BaseException as error:
        record["status"] = "failed"
        record["error"] = without_places(f"{type(error).__name__}: {error}")
        raise
    finally:
        record["ended"] = now()
        if path is not None:
            try:
                append(path, record)
            except (TypeError, ValueError) as error:  # results that are no JSON, or NaN
                record |= {"status": "failed", "error": f"cannot be written: {error}", "results": [], "repeats": {}}
                append(path, record)
                raise


def without_places(text: str) -> str:
    """No folder names, which may name the owner of the machine."""
    return text.replace(str(Path.cwd()), ".").replace(str(Path.home()), "~")


def append(path: Path, record: dict[str, Any]) -> None:
    """One line in one write, so that runs that append at once never mix their lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n").encode()
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        end = os.lseek(handle, 0, os.SEEK_END)
        if end and os.pread(handle, 1, end - 1) != b"\n":  # a run died in the middle of its line
            line = b"\n" + line
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """The file is either the old one or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a line that a crash cut short is passed over, any other broken one is refused."""
    found = []
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LARGEST_LINE + 1):
            number += 1
            if len(line) > LARGEST_LINE:
                raise ValueError(f"{path}, line {number} is longer than {LARGEST_LINE} bytes: this is no record")
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                if cut_short(line, error):
                    continue
                raise ValueError(f"{path}, line {number} is no JSON: restore the file from git") from None
            schema = record.get("schema") if isinstance(record, dict) else None
            if isinstance(schema, int) and schema > SCHEMA:
                raise ValueError(
                    f"{path}, line {number} was written by a newer anyformer (schema {schema}; this one reads "
                    f"{SCHEMA}): update anyformer"
                )
            if schema != SCHEMA:
                raise ValueError(f"{path}, line {number} is no record of schema {SCHEMA}: restore the file from git")
            found.append(record)
    return found


def cut_short(line: bytes, error: Exception) -> bool:
    """Whether the line is the beginning of a record: what JSON stumbles over is nothing but its end."""
    begins = b'{"schema":'
    if not isinstance(error, json.JSONDecodeError) or not (line.startswith(begins) or begins.startswith(line.rstrip())):
        return False
    rest = error.doc[error.pos :]
    return error.msg.startswith("Unterminated string") or not any(mark in rest for mark in '{}[]",:')


def latest(path: Path, kind: str) -> dict[str, Any] | None:
    """The newest finished record of a kind."""
    if not path.exists():
        return None
    return next((r for r in reversed(read(path)) if r.get("kind") == kind and r.get("status") == "done"), None)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def source() -> dict[str, Any]:
    """The commit that runs, and whether anything but records differs from it; None outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            run = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return run.stdout.strip() if run.returncode == 0 else None

    if git("ls-files", "--error-unmatch", "records.py") is None:  # installed elsewhere: that commit is not ours
        return {"commit": None, "dirty": None}
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)records")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def versions(packages: Sequence[str]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What speed depends on, and nothing that names the machine or its owner."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": memory_gib(),
        **built(),
    }


def built() -> dict[str, Any]:
    """What torch is and computes with here."""
    import torch

    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return {
        "threads": torch.get_num_threads(),
        "blas": blas[1] if blas else None,
        "torch_build": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether speeds measured on the one hold on the other; older records say less about theirs."""
    return all(one[fact] == other[fact] for fact in one.keys() & other.keys())


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    facts = dict(part for line in lines[:40] if len(part := [word.strip() for word in line.split(":", 1)]) == 2)
    model = f"family {facts['cpu family']} model {facts['model']}" if "cpu family" in facts and "model" in facts else ""
    return " ".join(word for word in (facts.get("model name", platform.processor()), model) if word)


def memory_gib() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError, AttributeError):
        return None
