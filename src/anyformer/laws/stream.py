"""Law 4: any chunking equals the whole pass, and an older state gives its old result."""

from typing import Any

import torch
from torch import Tensor

from anyformer.laws.evidence import gradients, near, paddings, parameters, same
from anyformer.laws.subject import Subject


def claimed(subject: Subject) -> bool:
    return subject.card.stream == "exact"


def check(subject: Subject) -> None:
    length = subject.length
    layer, x = subject.layer(True), subject.tokens(2, length)
    masks: dict[str, Tensor | None] = {"nowhere": None}
    if subject.card.padding:
        masks |= paddings(length)
    chunkings = {"one by one": [1] * length, "in one": [length], "unevenly": [5, 1, subject.card.block + 2]}
    for where, keep in masks.items():
        whole = layer(x, keep=keep)
        for how, sizes in chunkings.items():
            if how == "one by one" and where not in ("nowhere", "left"):
                continue
            with torch.no_grad():
                near(streamed(layer, x, sizes, keep), whole, f"streamed {how}, padded {where}")
    learned(layer, x[:, :23])
    older_states(layer, x)
    late_padding(subject, layer, x[:, :30])
    size_of_state(subject, layer)
    if subject.card.cross and subject.card.causal != "only":
        prepared(subject)


def streamed(layer: Any, x: Tensor, sizes: list[int], keep: Tensor | None = None) -> Tensor:
    state, done, outputs = layer.start(batch=x.shape[0]), 0, []
    for size in [*sizes, x.shape[1]]:
        chunk = slice(done, min(done + size, x.shape[1]))
        if chunk.start == chunk.stop:
            break
        y, state = layer.stream(x[:, chunk], state, keep=None if keep is None else keep[:, chunk])
        outputs.append(y)
        done = chunk.stop
    return torch.cat(outputs, 1)


def learned(layer: Any, x: Tensor) -> None:
    """Gradients pass through the state."""
    x = x.clone().requires_grad_()
    wanted = [x, *parameters(layer)]
    pairs = zip(gradients(streamed(layer, x, [4, 9, 1]), None, wanted), gradients(layer(x), None, wanted), strict=True)
    for found, expected in pairs:
        near(found, expected, "gradients through the state")


@torch.no_grad()
def older_states(layer: Any, x: Tensor) -> None:
    """Each state is used, then other tokens are streamed from it, then it is used again."""
    states, outputs = [layer.start(batch=x.shape[0])], []
    chunks = x[:, :40].split(4, 1)
    for chunk in chunks:
        y, state = layer.stream(chunk, states[-1])
        states.append(state)
        outputs.append(y)
        layer.stream(-3 * chunk[:, :2], states[-2])
    for chunk, state, before in zip(chunks, states, outputs, strict=False):
        after, _ = layer.stream(chunk, state)
        same(after, before, "an older state used again")


@torch.no_grad()
def late_padding(subject: Subject, layer: Any, x: Tensor) -> None:
    """Masks given for some chunks only."""
    if not subject.card.padding:
        return
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[0, 12:17] = False
    state, outputs = layer.start(batch=2), []
    for first in range(0, 30, 6):
        mask = keep[:, first : first + 6]
        y, state = layer.stream(x[:, first : first + 6], state, keep=None if mask.all() else mask)
        outputs.append(y)
    near(torch.cat(outputs, 1), layer(x, keep=keep), "padding in the middle chunks only")


@torch.no_grad()
def size_of_state(subject: Subject, layer: Any) -> None:
    state, sizes = layer.start(batch=1), []
    token = subject.tokens(1, 1)
    for _ in range(600):
        _, state = layer.stream(token, state)
        sizes.append(sum(t.numel() for t in state if isinstance(t, Tensor)))
    grown = max(sizes) > 2 * max(sizes[:150])
    expected = subject.card.state == "growing"
    words = {True: "growing", False: "constant"}
    assert grown == expected, f"the state is {words[grown]}, and the card says {words[expected]}"


@torch.no_grad()
def prepared(subject: Subject) -> None:
    """Cross-attention to a context that start() prepared once."""
    layer, x = subject.layer(False), subject.tokens(2, 9)
    context = subject.tokens(2, subject.card.block + 5, seed=2)
    masks = [None, *(paddings(context.shape[1]).values() if subject.card.padding else [])]
    for keep in masks:
        whole, state = layer(x, context, keep=keep), layer.start(2, context=context, keep=keep)
        outputs = []
        for chunk in x.split(4, 1):
            y, state = layer.stream(chunk, state)
            outputs.append(y)
        near(torch.cat(outputs, 1), whole, "streamed against a prepared context")
