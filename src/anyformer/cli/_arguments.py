"""Words of the command line that several verbs understand."""

import ast
import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anyformer.card import did_you_mean

SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
BYTES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def seconds(flag: str, text: str) -> float:
    """90, 90s, 2m or 1h."""
    return measure(flag, text, SECONDS, "a time such as 90s or 2m")


def size(flag: str, text: str) -> int:
    """2GiB, 500MB or a number of bytes."""
    return int(measure(flag, text, BYTES, "a size such as 2GiB or 500MB"))


def measure(flag: str, text: str, units: dict[str, Any], example: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([a-zA-Z]*)", text.strip())
    if not found or found[2].lower() not in units:
        raise ValueError(f"{flag} takes {example}, not {text!r}")
    value = float(found[1]) * units[found[2].lower()]
    if value <= 0:
        raise ValueError(f"{flag} must be above 0, not {text}")
    return float(value)


def listed(flag: str, text: str, known: Sequence[str]) -> list[str]:
    """Words with commas between them, each a known one and none twice."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ValueError(f"{flag} takes one or more of {', '.join(known)}")
    for word in words:
        if word not in known:
            raise ValueError(f"{flag} has no {word!r}{did_you_mean(word, known)}; it takes {', '.join(known)}")
    return list(dict.fromkeys(words))


def option(text: str, reserved: Sequence[str], whose: str = "the example's") -> tuple[str, Any]:
    """NAME=VALUE, where a bare word is a string."""
    name, given, value = text.partition("=")
    if not given or not name.isidentifier():
        raise ValueError(f"--set takes NAME=VALUE, not {text!r}")
    if name in reserved:
        raise ValueError(f"--set takes the core's own options; {name} is {whose}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def require_writable(path: Path | None) -> None:
    """Better refused now than when all is measured."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it")
    require_place(path)


def require_folder(path: Path | None) -> None:
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: name a folder")
    require_place(path)


def require_place(path: Path) -> None:
    """What is there, or else the folder that it would be made in, can be written."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if (there != path and not there.is_dir()) or not os.access(there, os.W_OK):
        raise ValueError(f"{path} cannot be written: choose another place")


def require_report(flag: str) -> None:
    if not (find_spec("matplotlib") and find_spec("jinja2")):
        raise ValueError(f"{flag} needs matplotlib and jinja2: pip install 'anyformer[report]'")


def require_device(device: str) -> None:
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device} is not to be had here: {error}") from None
