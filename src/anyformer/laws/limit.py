"""Law 6: at the card's exact limits it is softmax attention; a random estimate of softmax is right on average."""

import inspect
from collections.abc import Callable
from math import exp, log
from typing import Any

import torch
from torch import Tensor

from anyformer import catalog
from anyformer.contract import Attention, AttentionLayer
from anyformer.laws.evidence import near, paddings
from anyformer.laws.subject import Subject

DRAWS = 1_000  # of the random features, seeds fixed
ERRORS = 4.5  # standard errors: a chance of 7e-6 for each number that is compared


def claimed(subject: Subject) -> bool:
    return bool(subject.card.limits) or subject.card.estimator


def check(subject: Subject) -> None:
    for limit in subject.card.limits:
        for causal in subject.orders:
            equals_softmax(subject, causal, dict(limit))
    if subject.card.estimator:
        estimates(subject)


@torch.no_grad()
def equals_softmax(subject: Subject, causal: bool, options: dict[str, Any]) -> None:
    """Under these options; `weights` names a function of the mechanism's module that sets the core's weights."""
    what = f"causal={causal}, {options}"
    function = options.pop("weights", None)
    torch.manual_seed(0)
    limit = subject.make(causal=causal, **{**subject.sized(None), **options}).double().eval()
    if function is not None:
        weigh(limit.core, function)
    shape = {name: subject.options[name] for name in ("heads", "head_dim", "key_heads") if name in subject.options}
    softmax = catalog.build("softmax", dim=subject.dim, causal=causal, **shape).double().eval()
    missing = softmax.load_state_dict(limit.state_dict(), strict=False).missing_keys
    assert not missing, f"{what}: it has no projections {missing} to share with softmax"
    most = options.get("max_length", subject.most)
    lengths = [subject.short] if most is None else [most]
    for length in lengths if function or most else [1, *lengths, subject.length]:
        x = subject.tokens(2, length)
        near(limit(x), softmax(x), f"{what}, length {length}: compared with softmax")
        if subject.card.cross and not causal:
            context = subject.tokens(2, length, seed=2)
            near(limit(x, context), softmax(x, context), f"{what}, over a context: compared with softmax")
        if subject.card.padding and not function:  # the weights are for so many real tokens
            for where, keep in paddings(length).items():
                near(limit(x, keep=keep), softmax(x, keep=keep), f"{what}, padded {where}: compared with softmax")


def weigh(core: Any, function: str) -> None:
    module = __import__(type(core).__module__, fromlist=[function])
    assert hasattr(module, function), f"the card's limit names {function}(core), which its file does not have"
    getattr(module, function)(core)


# Random features: draws of the estimate of exp(q.k / sqrt(D)) for some queries and keys


@torch.no_grad()
def estimates(subject: Subject) -> None:
    """Unbiased, and a mean squared error that four times as many features bring down to a fourth."""
    causal = subject.orders[0]
    layer = subject.layer(causal)
    assert isinstance(layer, AttentionLayer), "the card says estimator, and there is no core that estimates"
    for name in ("kernel", "redraw"):
        assert hasattr(layer.core, name), f"the card says estimator, and the core has no {name}()"
    few = 2 * layer.core.head_dim  # whole blocks where features come in orthogonal blocks, which do better inside one
    generator = torch.Generator().manual_seed(5)
    q, k = (0.6 * torch.randn(1, layer.core.heads, 4, layer.core.head_dim, generator=generator).double() for _ in "qk")
    true = (q @ k.mT / layer.core.head_dim**0.5).exp()
    squares = []
    for features in (few, 4 * few):
        core = subject.make(causal=causal, **{**subject.sized(None), "features": features}).double().eval().core
        attends_with_it(core, q, k)
        drawn = draws(lambda core=core: core.kernel(q, k), core.redraw)  # type: ignore[misc]
        assert drawn.dtype == torch.float64, f"kernel() gives {drawn.dtype}; float64 tells a bias from rounding"
        assert drawn.shape[1:] == true.shape, f"kernel() gives the shape {tuple(drawn.shape[1:])}"
        error = drawn / true - 1
        unbiased(error.flatten(1), f"{features} features, each pair")
        unbiased(error.flatten(1).mean(1, keepdim=True), f"{features} features, all pairs together")
        squares.append(error.square().flatten(1).mean(1))
    falls_to_a_fourth(squares[0], squares[1], few)
    if "orthogonal" in inspect.signature(type(layer.core)).parameters:
        orthogonality_pays(subject, causal, few, q / 2, k / 2)


def orthogonality_pays(subject: Subject, causal: bool, features: int, q: Tensor, k: Tensor) -> None:
    """A lower mean squared error than independent features have; on short vectors, where errors spread less."""
    true, squares = (q @ k.mT / q.shape[-1] ** 0.5).exp(), []
    for orthogonal in (False, True):
        options = {**subject.sized(None), "features": features, "orthogonal": orthogonal}
        core = subject.make(causal=causal, **options).double().core
        drawn = draws(lambda core=core: core.kernel(q, k), core.redraw, 4 * DRAWS)  # type: ignore[misc]
        squares.append((drawn / true - 1).square().flatten(1).mean(1))
    ratio, spread = log_ratio(squares[0], squares[1])
    assert ratio > ERRORS * spread, (
        f"{features} orthogonal features have {exp(-ratio):.2f} times the mean squared error of independent ones, "
        f"and {exp(ERRORS * spread - ratio):.2f} times is not excluded"
    )


def attends_with_it(core: Attention, q: Tensor, k: Tensor) -> None:
    """What is tested is what attends, after a redraw too; the loose tolerance is for an epsilon."""
    for _ in range(2):
        v = torch.randn(*k.shape[:3], 5, generator=torch.Generator().manual_seed(6)).double()
        weight: Tensor = core.kernel(q, k)  # type: ignore[operator]
        near(core.attend(q, k, v), weight @ v / weight.sum(-1, keepdim=True), "attention by kernel()", 1e-2)
        core.redraw(torch.Generator().manual_seed(8))  # type: ignore[operator]


def draws(kernel: Callable[[], Tensor], redraw: Callable[[torch.Generator], object], count: int = DRAWS) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    found = []
    for _ in range(count):
        redraw(generator)
        found.append(kernel().clone())
    return torch.stack(found)


def unbiased(error: Tensor, what: str) -> None:
    """Each column's mean over the draws is 0 within some standard errors."""
    spread = error.std(0) / DRAWS**0.5
    assert (spread > 0).all(), f"{what}: redraw() changes nothing"
    worst = (error.mean(0).abs() / spread).max().item()
    assert worst <= ERRORS, f"{what}: the mean of {DRAWS} draws is {worst:.1f} standard errors from exp(q.k/sqrt(D))"


def falls_to_a_fourth(fewer: Tensor, more: Tensor, features: int) -> None:
    """An interval for the ratio of mean squares."""
    ratio, spread = log_ratio(fewer, more)
    low, high = exp(ratio - ERRORS * spread), exp(ratio + ERRORS * spread)
    assert spread * ERRORS < log(4), f"errors spread too widely to judge how they fall: [{low:.1f}, {high:.1f}]"
    assert low <= 4 <= high, (
        f"from {features} to {4 * features} features the mean squared error falls {exp(ratio):.2f} times, "
        f"with 4 outside [{low:.2f}, {high:.2f}]"
    )


def log_ratio(above: Tensor, below: Tensor) -> tuple[float, float]:
    """The logarithm of a ratio of means, which is near normal, and its standard error."""
    spread = sum((t.var() / t.mean().square() / len(t)).item() for t in (above, below)) ** 0.5
    return log(above.mean().item() / below.mean().item()), spread
