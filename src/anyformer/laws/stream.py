"""Law 4: any chunking equals the whole pass, and an older state gives its old result."""

import io
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from anyformer.contract import Attention
from anyformer.laws.evidence import gradients, near, paddings, parameters, same
from anyformer.laws.subject import Subject

TOKENS = 600  # of a long stream
COPIES = 40  # of a growing buffer over those tokens: a cache that copies itself per token makes hundreds


def claimed(subject: Subject) -> bool:
    return subject.card.stream == "exact"


def check(subject: Subject) -> None:
    length, block = subject.length, subject.card.block
    x = subject.tokens(2, length)
    masks: dict[str, Tensor | None] = {"nowhere": None}
    if subject.card.padding:
        masks |= paddings(length)
    chunkings = {"one by one": [1] * length, "in one": [length], "unevenly": [5, 1, block + 2], "by block": [block] * 3}
    for training in subject.trainings:
        layer = subject.layer(True, training=training)
        for where, keep in masks.items():
            with torch.no_grad():
                whole = layer(x, keep=keep) if keep is not None else layer(x)
                for how, sizes in chunkings.items():
                    if how != "one by one" or (where in ("nowhere", "left") and not training):
                        near(streamed(layer, x, sizes, keep), whole, f"streamed {how}, padded {where}")
    layer = subject.layer(True)
    for learning in (False, True):
        with torch.set_grad_enabled(learning):
            older_states(layer, x)
    learned(layer, x[:, :23])
    late_padding(subject, layer, x[:, :30])
    state_is_a_value(layer, x[:, :30])
    size_of_state(subject, layer)
    single_precision(subject, x)
    core = subject.core(True)
    if core is not None:
        core_streams(subject, core)
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
        assert state.position == done, f"the state says position {state.position} after {done} tokens"
    return torch.cat(outputs, 1)


def learned(layer: Any, x: Tensor) -> None:
    """Gradients pass through the state."""
    x = x.clone().requires_grad_()
    wanted = [x, *parameters(layer)]
    pairs = zip(gradients(streamed(layer, x, [4, 9, 1]), None, wanted), gradients(layer(x), None, wanted), strict=True)
    for found, expected in pairs:
        near(found, expected, "gradients through the state")


def older_states(layer: Any, x: Tensor) -> None:
    """Each state is used, then other tokens are streamed from it, then it is used again."""
    states, outputs = [layer.start(batch=x.shape[0])], []
    chunks = x[:, :40].split(4, 1)
    for chunk in chunks:
        y, state = layer.stream(chunk, states[-1])
        states.append(state)
        outputs.append(y)
        layer.stream(-3 * chunk[:, :2], states[-2])
        layer.stream(-5 * torch.cat([chunk, chunk], 1), states[-2])
    for chunk, state, before in zip(chunks, states, outputs, strict=False):
        after, _ = layer.stream(chunk, state)
        same(after, before, "an older state used again")
    one, other = (layer.stream(sign * chunks[0], states[-1])[1] for sign in (1, -1))
    separate = layer.stream(chunks[1], layer.stream(chunks[0], states[-1])[1])[0]
    layer.stream(chunks[2], other)
    near(layer.stream(chunks[1], one)[0], separate, "one of two states that came from the same one")


@torch.no_grad()
def late_padding(subject: Subject, layer: Any, x: Tensor) -> None:
    """Masks given for some chunks only, and what stands at padded positions."""
    if not subject.card.padding:
        return
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[0, 12:17] = False
    x = x.masked_fill(~keep[:, :, None], torch.nan)
    state, outputs = layer.start(batch=2), []
    for first in range(0, 30, 6):
        mask = keep[:, first : first + 6]
        y, state = layer.stream(x[:, first : first + 6], state, keep=None if mask.all() else mask)
        outputs.append(y)
    near(torch.cat(outputs, 1), layer(x, keep=keep), "padding in the middle chunks only")


@torch.no_grad()
def state_is_a_value(layer: Any, x: Tensor) -> None:
    """A tuple of batch-first tensors that can be reordered and saved; its items do not see each other."""
    _, state = layer.stream(x[:, :20], layer.start(batch=2))
    assert hasattr(state, "_fields"), "a state is a NamedTuple"
    for leaf in tree_leaves(state):
        assert leaf is None or isinstance(leaf, Tensor | int), f"a state holds tensors, not a {type(leaf).__name__}"
        assert not isinstance(leaf, Tensor) or leaf.shape[:1] == (2,), "a state's tensors start with the batch"
    expected, _ = layer.stream(x[:, 20:], state)
    buffer = io.BytesIO()
    torch.save(tuple(state), buffer)
    buffer.seek(0)
    loaded = type(state)(*torch.load(buffer, weights_only=True))
    same(layer.stream(x[:, 20:], loaded)[0], expected, "a state that was saved and loaded")
    turned = tree_map(lambda leaf: leaf[[1, 0]] if isinstance(leaf, Tensor) else leaf, state)
    near(layer.stream(x[[1, 0], 20:], turned)[0], expected[[1, 0]], "a state whose items were reordered")
    for item in range(2):
        alone = tree_map(lambda leaf, item=item: leaf[[item]] if isinstance(leaf, Tensor) else leaf, state)
        near(layer.stream(x[[item], 20:], alone)[0], expected[[item]], "one item's part of a state")


@torch.no_grad()
def size_of_state(subject: Subject, layer: Any) -> None:
    """The memory that it holds on to, views of larger tensors included."""
    state, sizes, buffers = layer.start(batch=1), [], []
    token = subject.tokens(1, 1)
    for _ in range(TOKENS):
        _, state = layer.stream(token, state)
        storages = [t.untyped_storage() for t in tree_leaves(state) if isinstance(t, Tensor)]
        sizes.append(sum(storage.nbytes() for storage in storages))
        buffers.append(max(storages, key=lambda storage: storage.nbytes()).data_ptr())
    grown = max(sizes) > 2 * max(sizes[:150])
    word = "growing" if grown else "constant"
    assert subject.card.state == word, f"the state is {word}, and the card says {subject.card.state}"
    if grown:
        copies = sum(one != other for one, other in pairwise(buffers))
        assert copies <= COPIES, f"the state copied itself {copies} times in {TOKENS} tokens"


@torch.no_grad()
def single_precision(subject: Subject, x: Tensor) -> None:
    layer, x = subject.layer(True, torch.float32), x.float()
    near(streamed(layer, x, [1, 7, subject.card.block]), layer(x), "streamed in float32", 1e-4)


@torch.no_grad()
def core_streams(subject: Subject, core: Attention) -> None:
    """At the level of q, k and v, with keys that heads share and values of another width."""
    length = subject.short
    q = subject.heads_of_tokens(core, length, seed=1)
    k = subject.heads_of_tokens(core, length, seed=2, heads=1)
    v = subject.heads_of_tokens(core, length, seed=3, heads=1, dim=core.head_dim + 3)
    for where, keep in {"nowhere": None, **(paddings(length) if subject.card.padding else {})}.items():
        state, outputs = core.begin(2, q), []
        for first, last in pairwise(sorted({0, 1, length // 3, length - 1, length})):
            part = None if keep is None else keep[:, first:last]
            chunk = slice(first, last)
            y, state = core.extend(q[:, :, chunk], k[:, :, chunk], v[:, :, chunk], state, part)
            outputs.append(y)
        near(torch.cat(outputs, 2), core.attend(q, k, v, keep), f"the core streamed, padded {where}")


@torch.no_grad()
def prepared(subject: Subject) -> None:
    """Cross-attention to a context that start() prepared once."""
    layer, x = subject.layer(False), subject.tokens(2, 9)
    context = subject.tokens(2, subject.card.block + 5, seed=2)
    masks = [None, *(paddings(context.shape[1]).values() if subject.card.padding else [])]
    for keep in masks:
        whole = layer(x, context, keep=keep)
        state = first = layer.start(2, context=context, keep=keep)
        outputs = []
        for chunk in x.split([4, 1, 4], 1):
            y, state = layer.stream(chunk, state)
            outputs.append(y)
        near(torch.cat(outputs, 1), whole, "streamed against a prepared context")
        same(layer.stream(x[:, :4], first)[0], outputs[0], "a prepared context used again")
        assert state.position == 9, f"a prepared context says position {state.position} after 9 queries"
