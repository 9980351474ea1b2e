"""One process, or those that `torchrun` started, each with its share of every batch."""

import atexit
import os
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Group(NamedTuple):
    """The processes that train one model; this is number `rank` of `size`."""

    rank: int
    size: int
    device: torch.device

    def parallel(self, model: nn.Module) -> nn.Module:
        """The same model; its gradients come out as the mean over the processes."""
        return model if self.size == 1 else DistributedDataParallel(model)

    def total(self, values: dict[str, float]) -> dict[str, float]:
        """The sums over all processes."""
        if self.size == 1:
            return values
        summed = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(summed)
        return dict(zip(values, summed.tolist(), strict=True))

    def everyones(self, value: Any) -> list[Any]:
        found = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()


def group(device: str) -> Group:
    """The processes that torchrun's environment tells of; without it, this one alone."""
    place = torch.device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Group(0, 1, place)
    if "LOCAL_RANK" not in os.environ:
        raise ValueError("WORLD_SIZE is set, and not by torchrun: start several processes with torchrun, or unset it")
    backend = "gloo"
    if place.type != "cpu":
        place = torch.device(place.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(place)
        backend = f"cpu:gloo,{place.type}:{dist.get_default_backend_for_device(place)}"
    if not dist.is_initialized():
        dist.init_process_group(backend)  # once a program: a second time would meet the addresses of the first
        atexit.register(dist.destroy_process_group)
    return Group(dist.get_rank(), dist.get_world_size(), place)
