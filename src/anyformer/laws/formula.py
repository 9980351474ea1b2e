"""Law 1: the fast form equals the paper's formula: outputs, and gradients of every input and parameter."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anyformer.contract import Attention
from anyformer.laws.evidence import gradients, near, paddings, parameters
from anyformer.laws.subject import Subject, little_cache

MANY = 150  # items of a batch: more than a fast form takes at once
LONG = 9_001  # tokens: more than a fast form keeps in cache


def claimed(subject: Subject) -> bool:
    return subject.catalogued


def check(subject: Subject) -> None:
    for causal in subject.orders:
        for length in subject.lengths:
            for training in subject.trainings:
                layer = subject.layer(causal, length=length, training=training)
                fast, literal = positional(layer), positional(layer.formula)
                for what, given in calls(subject, causal, length):
                    what = f"causal={causal}, training={training}, length {length}{what}"
                    equal(fast, literal, given, parameters(layer), what)
            core = subject.core(causal, length=length)
            if core is not None:
                core_equals_formula(subject, core, length)
        if subject.card.time < 2 and (causal or subject.card.cross) and not subject.grid:
            long_sequence(subject, causal)
        layer, x = subject.layer(causal), subject.tokens(MANY, subject.short)
        equal(layer, layer.formula, (x,), parameters(layer), f"causal={causal}, a batch of {MANY}")
        with little_cache():
            for length in (7, subject.short, subject.length):
                layer = subject.layer(causal, length=length)
                fast, literal = positional(layer), positional(layer.formula)
                x, keep = subject.tokens(5, length), torch.cat([paddings(length)["middle"]] * 3)[:5]
                for given in [(x,), *([(x, None, keep)] if subject.card.padding else [])]:
                    equal(fast, literal, given, parameters(layer), f"causal={causal}, length {length}, little cache")


def calls(subject: Subject, causal: bool, length: int) -> list[tuple[str, tuple[Tensor | None, ...]]]:
    """What to call it with: tokens, context, keep."""
    x, masks = subject.tokens(2, length), paddings(length)
    found: list[tuple[str, tuple[Tensor | None, ...]]] = [("", (x,)), (" contiguous", (x.contiguous(),))]
    if subject.card.padding:
        found += [(f" padded {where}", (x, None, keep)) for where, keep in masks.items()]
    for keys in subject.contexts(length) if subject.card.cross else []:
        if causal and keys < length:
            continue
        context = subject.tokens(2, keys, seed=2)
        found.append((f" over a context of {keys}", (x, context)))
        if subject.card.padding:
            found.append((f" over a padded context of {keys}", (x, context, paddings(keys)["left"])))
    return found


def core_equals_formula(subject: Subject, core: Attention, length: int) -> None:
    """q, k and v as a foreign model gives them."""

    def draw(queries: int, keys: int, key_heads: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        q = subject.heads_of_tokens(core, queries, seed=1)
        k = subject.heads_of_tokens(core, keys, seed=2, heads=key_heads)
        return q, k, subject.heads_of_tokens(core, keys, seed=3, heads=key_heads, dim=core.head_dim + 3)

    def judged(what: str, *given: Tensor | None) -> None:
        what = f"the core alone, causal={core.causal}, length {length}, {what}"
        equal(core.attend, core.formula, given, parameters(core), what)
        if subject.card.cross and not core.causal:
            equal(prepared, core.formula, given, parameters(core), f"{what}, prepared once")

    def prepared(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
        return core.read(q, core.hold(k, v, keep))

    q, k, v = draw(length, length)
    judged("the same number of keys", q, k, v)
    judged("contiguous", *(t.contiguous() for t in (q, k, v)))
    judged("keys shared by all heads", q, *draw(length, length, 1)[1:])
    judged("one key in every place", q, k[:, :1, :1].expand_as(k), v[:1, :, :1].expand_as(v))
    for alone in range(3):  # what has no gradient is not asked for one
        given = [t.clone().requires_grad_(n == alone) for n, t in enumerate((q, k, v))]
        pair = [gradients(form(*given), None, [given[alone]])[0] for form in (core.attend, core.formula)]
        near(pair[0], pair[1], f"the core alone, causal={core.causal}, length {length}, only input {alone} learns")
    others = {(1, length), (length // 2, length)} if core.causal else set()
    if subject.card.cross:
        others |= {(length, keys) for keys in subject.contexts(length)} | {(1, length)}
    for queries, keys in sorted(others):
        if 0 < queries <= keys or (queries and not core.causal):
            q, k, v = draw(queries, keys)
            judged(f"{queries} queries and {keys} keys", q, k, v)
            if subject.card.padding:
                judged(f"{queries} queries and {keys} keys, padded", q, k, v, paddings(keys)["middle"])


def long_sequence(subject: Subject, causal: bool) -> None:
    """The formula of a few queries only, which see all keys, or if causal those up to the last of them."""
    core = subject.core(causal, length=LONG)
    if core is None:
        return
    q, k, v = (subject.heads_of_tokens(core, LONG, seed=seed).requires_grad_() for seed in (1, 2, 3))
    y = core.attend(q, k, v)
    for stop in (LONG // 2, LONG - 808, LONG):
        rows, keys = slice(stop - 3, stop), slice(stop if causal else LONG)
        expected = core.formula(q[:, :, rows], k[:, :, keys], v[:, :, keys])
        what = f"the core alone, causal={causal}, tokens {rows.start} to {stop} of {LONG}"
        near(y[:, :, rows], expected, what)
        both = (gradients(some, None, (q, k, v), again=True) for some in (y[:, :, rows], expected))
        for one, other in zip(*both, strict=True):
            near(one, other, f"{what}: a gradient")


def equal(
    fast: Callable[..., Tensor],
    literal: Callable[..., Tensor],
    given: Sequence[Tensor | None],
    weights: list[Tensor],
    what: str,
) -> None:
    """The same outputs, and gradients for a loss that tells outputs apart and for one number expanded."""
    inputs = [t.detach().requires_grad_() if t is not None and t.is_floating_point() else t for t in given]
    found, expected = seeded(fast, inputs), seeded(literal, inputs)
    near(found, expected, what)
    wanted = [t for t in inputs if t is not None and t.requires_grad] + weights
    told_apart = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(3))
    for kind, weight in (("a gradient", told_apart), ("the gradient of sum()", None)):
        both = (gradients(y, weight, wanted, again=weight is not None) for y in (found, expected))
        for one, other in zip(*both, strict=True):
            near(one, other, f"{what}: {kind}")


def seeded(form: Callable[..., Tensor], given: Sequence[Tensor | None]) -> Tensor:
    torch.manual_seed(7)
    return form(*given)


def positional(form: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, context=None, keep=None: form(x, context, keep=keep)
