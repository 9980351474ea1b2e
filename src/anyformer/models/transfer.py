"""Weights from a checkpoint into a model that shares a part of them, as from a ViT into a ViL or ViP.

    report = transfer(read("run/last.safetensors", "model."), ViT("linformer", ...))

What has the same name and shape is copied. What is new stays as the model was built, which is how its paper starts it.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn


class Transferred(NamedTuple):
    """Names of tensors; one that has another shape in the checkpoint is both new and dropped."""

    copied: list[str]
    new: list[str]
    dropped: list[str]

    def __str__(self) -> str:
        return "\n".join(f"{part}: {listed(names)}" for part, names in self._asdict().items())


def listed(names: Sequence[str]) -> str:
    """Layers together, as in blocks.*.norm.weight (4)."""
    count = Counter(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names)
    return ", ".join(f"{name} ({n})" if n > 1 else name for name, n in count.items()) or "nothing"


@torch.no_grad()
def transfer(source: Mapping[str, Tensor], target: nn.Module) -> Transferred:
    """Copies into `target` in place."""
    own = target.state_dict()

    def fits(name: str) -> bool:
        ours, theirs = own.get(name), source.get(name)
        if ours is None or theirs is None:
            return False
        return ours.shape == theirs.shape and ours.is_floating_point() == theirs.is_floating_point()

    found = Transferred(
        copied=[name for name in own if fits(name)],
        new=[name for name in own if not fits(name)],
        dropped=[name for name in source if not fits(name)],
    )
    if not found.copied:
        raise ValueError(
            f"no tensor of the checkpoint has the name and shape of one of the model: it has {shown(source)}, "
            f"and the model {shown(own)}"
        )
    for name in found.copied:
        own[name].copy_(source[name])
    return found


def shown(tensors: Mapping[str, Tensor], most: int = 3) -> str:
    names = [f"{name} {tuple(t.shape)}" for name, t in list(tensors.items())[:most]]
    return ", ".join(names + ["..."] * (len(tensors) > most)) or "none"


def read(path: str | Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a safetensors file whose names begin so, without that; a training checkpoint has "model."."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(
            f"{path} is no .safetensors file; others are not read, since a pickle (.bin, .pt, .pth, .ckpt) can run any "
            "code: save the weights with safetensors.torch.save_file where you trust them"
        )
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            tensors = {name.removeprefix(prefix): file.get_tensor(name).clone() for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error})") from None
    if not tensors:
        raise ValueError(f"{path} holds no tensor" + (f" whose name begins with {prefix!r}" if prefix else ""))
    return tensors
