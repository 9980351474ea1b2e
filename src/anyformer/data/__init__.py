"""Data sets, one a file: `fetch` gets one from others, checks it and stores it; `load` gives it as arrays."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def cache(name: str) -> Path:
    """Where a data set is stored unless another place is given."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "anyformer" / name


def write(path: Path, save: Callable[[IO[bytes]], object]) -> None:
    """The file is either the old one or the whole new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                save(file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(
            f"{path} could not be written ({error.strerror or error}): make room or choose another place"
        ) from error
