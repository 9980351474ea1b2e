"""All that a run needs to go on as if it had never stopped, in one safetensors file.

Tensors   model.NAME, optimizer.INDEX.NAME
Header    step, arguments, length of the metrics file, every process's random state, and a digest of all this

`last.safetensors` is complete whenever it is there; the one before stays as `previous.safetensors`, which counts if a
crash came just between the two.
"""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

LAST, PREVIOUS = "last.safetensors", "previous.safetensors"
FACTS = "anyformer.training.1"  # in the header; the number is the format's


class Checkpoint(NamedTuple):
    step: int  # how many are done
    arguments: dict[str, Any]
    metrics_bytes: int
    random: list[Any]  # of each process
    tensors: dict[str, Tensor]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    facts = json.dumps(checkpoint._replace(tensors={})._asdict(), default=np.ndarray.tolist)
    tensors = apart(checkpoint.tensors)
    about = {FACTS: f"{digest(tensors, facts)} {facts}"}
    write(folder / LAST, tensors, about, previous=folder / PREVIOUS)


def load(folder: Path, arguments: dict[str, Any]) -> Checkpoint | None:
    """The newest checkpoint, if there is one; it must come from a run with these arguments."""
    path = next((folder / name for name in (LAST, PREVIOUS) if (folder / name).exists()), None)
    if path is None:
        return None
    instead = f"resume from {PREVIOUS}" if path.name == LAST and (folder / PREVIOUS).exists() else "start anew"
    damaged = ValueError(f"{path} is damaged or no checkpoint; delete it to {instead}")
    try:
        with safe_open(path, framework="pt") as file:
            said, _, facts = (file.metadata() or {}).get(FACTS, "").partition(" ")
            if not facts:
                raise damaged
            names = file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except SafetensorError:
        raise damaged from None
    if said != digest(tensors, facts):
        raise damaged
    found = Checkpoint(**{**json.loads(facts), "tensors": tensors})
    changed = differences(found.arguments, arguments)
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ValueError(
            f"{path} is of a run with other arguments: {', '.join(changed[:3])}{more}; "
            "resume with the same ones, or take another folder"
        )
    return found


def write(path: Path, tensors: dict[str, Tensor], about: dict[str, str], *, previous: Path | None = None) -> None:
    """The whole file or nothing: after a crash or on a full disk there is what was there before."""
    part = path.parent / ".part"  # a folder: safetensors makes files of its own beside the one that it writes
    shutil.rmtree(part, ignore_errors=True)
    try:
        with writing(path):
            part.mkdir()
            save_file(tensors, part / path.name, about)
            flush(part / path.name)
            if previous is not None and path.exists():
                os.replace(path, previous)
            os.replace(part / path.name, path)
            flush(path.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What goes wrong is an error that names the file and the way on."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"{path} could not be written ({error}); make room, then resume from the last checkpoint"
        ) from error


def flush(path: Path) -> None:
    """To the disk, names in a folder included."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU and each in memory of its own, as safetensors wants them: tied weights are written twice."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return found


def digest(tensors: dict[str, Tensor], facts: str) -> str:
    summary = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        summary.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        summary.update(tensor.flatten().view(torch.uint8).numpy().data)
    return summary.hexdigest()


def differences(then: dict[str, Any], now: dict[str, Any], within: str = "") -> list[str]:
    """Arguments that are not the same."""
    found = []
    for name in {**then, **now}:
        old, new = then.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{within}{name}.")
        elif old != new:
            found.append(f"{within}{name} was {old!r:.40} and is {new!r:.40}")
    return found


def outline(model: nn.Module) -> dict[str, Any]:
    """What a model is made of: the options that its modules keep, and the shapes of its tensors."""
    modules = {
        name: {"kind": type(module).__name__, "extra_repr": module.extra_repr()}
        | {key: value for key, value in vars(module).items() if isinstance(value, bool | int | float | str)}
        for name, module in model.named_modules()
    }
    tensors = {
        name: f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for name, t in model.state_dict().items()
    }
    return {"modules": modules, "tensors": tensors}


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's options are not among them: arguments and step say what they are."""
    found = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{index}.{name}": tensor for name, tensor in state.items() if tensor is not None}
    return found


def put_back(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights: dict[str, Tensor] = {}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        if part == "model":
            weights[rest] = tensor
        else:
            index, _, key = rest.partition(".")
            state.setdefault(int(index), {})[key] = tensor
    model.load_state_dict(weights)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def random_state(device: torch.device) -> dict[str, Any]:
    """Of torch, Python and NumPy in this process, and of its accelerator."""
    found = {
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
    }
    if device.type != "cpu":
        found["device"] = torch.get_device_module(device).get_rng_state().tolist()
    return found


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    version, words, last = state["python"]
    random.setstate((version, tuple(words), last))
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(torch.tensor(state["device"], dtype=torch.uint8))


def seed_all(seed: int, rank: int) -> None:
    """Two processes draw different numbers, and so do two seeds."""
    words = np.random.SeedSequence((seed, rank)).generate_state(3)
    torch.manual_seed(int(words[0]))
    random.seed(int(words[1]))
    np.random.seed(int(words[2]))  # noqa: NPY002
