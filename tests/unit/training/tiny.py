"""A small model with dropout on a small task, whose items count differently; `python tiny.py FOLDER` trains it."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from anyformer.training.loop import train

ITEMS = 8


class Points:
    """Each item has a few points to classify; how many differs a lot between the items of a batch."""

    unit = "points"

    def __init__(self, *, spoiled=None):
        self.spoiled = spoiled  # the step whose batch holds an infinity
        self.what = {"task": "Points", "items": ITEMS}

    def batch(self, step):
        drawn = np.random.default_rng((5, step))
        x = torch.from_numpy(drawn.normal(size=(ITEMS, 6, 4))).float()
        counted = torch.arange(6) < torch.arange(ITEMS)[:, None] % 6 + 1
        if step == self.spoiled:
            x[3, 0, 0] = torch.inf
        return {"x": x, "target": (x[..., 0] + x[..., 1] > 0).long().masked_fill(~counted, -100)}

    def loss(self, model, batch):
        scores, target = model(batch["x"]).flatten(0, 1), batch["target"].flatten()
        total = cross_entropy(scores, target, reduction="sum", ignore_index=-100)
        return total, int((target != -100).sum()), {"accuracy": int((scores.argmax(-1) == target).sum())}

    def evaluate(self, model):
        device = next(model.parameters()).device
        total, count, sums = self.loss(model, {name: t.to(device) for name, t in self.batch(10**6).items()})
        return {"loss": total.item() / count, "accuracy": sums["accuracy"] / count}


def small(dropout=0.2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 2))


def run(model=None, task=None, **options):
    """Forty quick steps, unless told otherwise."""
    usual = {"optimizer": partial(torch.optim.AdamW, lr=1e-2), "steps": 40, "evaluate_every": 7, "quiet": True}
    return train(model or small(), task or Points(), **{**usual, **options})


if __name__ == "__main__":
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    run(folder=folder, steps=steps, checkpoint_every=3, resume=True, warmup=5, final=0.1, clip=1.0)
