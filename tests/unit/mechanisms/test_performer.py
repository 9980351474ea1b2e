"""What the laws do not say of Performer: its options, its random features, and exponents far out of float32's range."""

import copy
import math

import pytest
import torch
from torch.testing import assert_close

import anyformer as af
from anyformer.mechanisms.kernel.performer import Performer, draw
from anyformer.parts import sums

KINDS = ("positive", "hyperbolic", "relu", "exp")
EXPONENTIAL = ("positive", "hyperbolic", "exp")
H, D = 2, 8
ERRORS = 4.5  # standard errors: a chance of 7e-6

CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def core(kind, causal=False, head_dim=D, **options):
    torch.manual_seed(0)
    return Performer(heads=H, head_dim=head_dim, causal=causal, kind=kind, **{"features": 24, **options})


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def qkv(length, scale=1.0, dtype=torch.float64, seed=0):
    drawn = seeded(seed)
    q, k, v = (torch.randn(1, H, length, D, generator=drawn, dtype=torch.float64) for _ in "qkv")
    return [t.to(dtype) for t in (scale * q, scale * k, v)]


def learned(y, tensors):
    weight = torch.randn(y.shape, generator=seeded(1), dtype=torch.float64).to(y.dtype)
    return torch.autograd.grad(y, tensors, weight)


# Options


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"projection": False}, ValueError, ("projection=False", "'positive'", "relu and exp")),
        ({"kind": "hyperbolic", "projection": False}, ValueError, ("projection=False", "'hyperbolic'")),
        ({"kind": "relu", "projection": False, "features": D + 1}, ValueError, (f"features={D + 1}", "head_dim")),
        ({"kind": "exp", "projection": False, "features": 256}, ValueError, ("features=256", "projection=False")),
        ({"kind": "hyperbolic", "features": 7}, ValueError, ("features=7", "even")),
        ({"epsilon": 1e-3}, ValueError, ("epsilon=0.001", "'positive'", "relu")),
        ({"kind": "hyperbolic", "epsilon": 0.0}, ValueError, ("epsilon=0.0", "'hyperbolic'")),
        ({"kind": "exp", "epsilon": 0.1}, ValueError, ("epsilon=0.1", "'exp'")),
        ({"kind": "cosine"}, ValueError, ("'cosine'", *map(repr, KINDS))),
        ({"kind": None}, ValueError, ("kind", "None")),
        ({"features": 0}, ValueError, ("features", "at least 1")),
        ({"features": -2, "kind": "hyperbolic"}, ValueError, ("features", "at least 1")),
        ({"features": 2.5}, TypeError, ("features", "whole number", "2.5")),
        ({"features": True}, TypeError, ("features", "whole number", "True")),
    ],
)
def test_refused_in_one_sentence(options, kind, words):
    with pytest.raises(kind) as refused:
        Performer(heads=H, head_dim=D, **options)
    message = str(refused.value)
    assert 20 < len(message) < 120
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_variant_is_its_kind():
    for kind in KINDS:
        assert af.core(f"performer:{kind}", heads=H, head_dim=D).kind == kind
    assert af.core("performer", heads=H, head_dim=D).kind == "positive"
    with pytest.raises(TypeError, match="kind='exp' contradicts performer:relu"):
        af.core("performer:relu", heads=H, head_dim=D, kind="exp")
    with pytest.raises(ValueError, match="no variant 'cosine'"):
        af.core("performer:cosine", heads=H, head_dim=D)


@pytest.mark.parametrize("kind", KINDS)
def test_features_counts_what_phi_has(kind):
    made = core(kind, features=14)
    assert made.projection_PD.shape == (7 if kind == "hyperbolic" else 14, D)
    assert made.features_of(torch.ones(1, H, 3, D)).shape == (1, H, 3, 14)
    assert made.phi.features == 14


@pytest.mark.parametrize("features", [None, D])
@pytest.mark.parametrize("kind", ["relu", "exp"])
def test_without_a_projection_there_are_head_dim_features(kind, features):
    made = core(kind, features=features, projection=False)
    assert made.features == D
    assert made.projection_PD is None
    assert not made.state_dict()


def test_epsilon_is_what_relu_adds():
    x = -torch.ones(1, H, 3, D)
    for epsilon, expected in ((None, 1e-3), (0.25, 0.25), (0, 0.0)):
        made = core("relu", epsilon=epsilon, projection=False, features=None)
        assert_close(made.features_of(x), torch.full_like(x, expected / D**0.5))
    q, k, v = qkv(5, dtype=torch.float32)
    assert not core("relu", epsilon=0, projection=False, features=None).attend(q, -k.abs(), v).any()  # nothing is seen


# Redrawing


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_redraw_is_reproducible(kind, orthogonal):
    made, other = core(kind, orthogonal=orthogonal), core(kind, orthogonal=orthogonal)
    assert torch.equal(made.projection_PD, other.projection_PD)  # the same global seed
    before = made.projection_PD
    state = torch.get_rng_state()
    made.redraw(seeded(3))
    other.redraw(seeded(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(made.projection_PD, other.projection_PD)
    assert not torch.equal(made.projection_PD, before)
    other.redraw(seeded(4))
    assert not torch.equal(made.projection_PD, other.projection_PD)
    made.redraw()
    assert not torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_redraw_keeps_dtype_and_device(device, dtype):
    made = core("positive").to(device, dtype)
    shape = made.projection_PD.shape
    made.redraw(seeded())
    projection = made.projection_PD
    assert (projection.device.type, projection.dtype, projection.shape) == (device, dtype, shape)
    assert list(made.state_dict()) == ["projection_PD"]


@CAUSAL
@pytest.mark.parametrize("kind", KINDS)
def test_an_earlier_forward_keeps_its_features(kind, causal):
    """Forward, redraw, backward: the gradients of the features that the forward had."""
    made = core(kind, causal).double()
    inputs = [t.requires_grad_() for t in qkv(70)]
    old = made.projection_PD.clone()
    held = made.projection_PD
    expected = learned(made.attend(*inputs), inputs)
    y = made.attend(*inputs)
    made.redraw(seeded(1))
    assert torch.equal(held, old)
    for a, b in zip(learned(y, inputs), expected, strict=True):
        assert torch.equal(a, b)
    y = made.attend(*inputs)
    fresh = learned(made.attend(*inputs), inputs)
    made.load_state_dict({"projection_PD": old})  # in place
    for a, b, c in zip(learned(y, inputs), fresh, expected, strict=True):
        assert torch.equal(a, b)
        assert not torch.allclose(a, c)


# Random features


@pytest.mark.parametrize("count", [3, D, 2 * D + 3])
def test_rows_of_a_block_are_orthogonal(count):
    rows = draw(count, D, True, seeded())
    assert rows.shape == (count, D)
    for block in rows.split(D):
        directions = block / block.norm(dim=1, keepdim=True)
        assert_close(directions @ directions.T, torch.eye(len(block)), rtol=0, atol=1e-5)
    first, second = draw(2 * D, D, True, seeded()).split(D)
    assert ((first @ second.T).abs() > 1e-3).all()  # blocks know nothing of each other


@pytest.mark.parametrize("orthogonal", [True, False])
def test_rows_are_as_long_as_gaussian_ones_and_point_everywhere(orthogonal):
    """|w|^2 has mean D and variance 2 D, each component mean 0 and variance 1."""
    generator, draws = seeded(), 2000
    rows = torch.stack([draw(D, D, orthogonal, generator) for _ in range(draws)]).double()
    squares = rows.square().sum(-1).flatten()
    assert abs(squares.mean() - D) < ERRORS * (2 * D / len(squares)) ** 0.5
    spread = (squares - D).square()
    assert abs(spread.mean() - 2 * D) < ERRORS * spread.std() / len(squares) ** 0.5
    for moment, expected in ((rows, 0), (rows.square(), 1), (rows[:, :, :-1] * rows[:, :, 1:], 0)):
        off = (moment.mean(0) - expected) / (moment.std(0) / draws**0.5)
        assert off.abs().max() < ERRORS


def squared_errors(draws=4000, **options):
    """Of the estimate of exp(q.k / sqrt(D)), relative, a mean over some queries and keys for each draw."""
    made = core(**options).double()
    q, k, _ = qkv(4, 0.3, seed=2)
    true = (q @ k.mT / D**0.5).exp()
    generator = seeded(5)
    found = []
    for _ in range(draws):
        made.redraw(generator)
        found.append((made.kernel(q, k) / true - 1).square().mean())
    return torch.stack(found)


def assert_smaller(errors, others):
    """In the mean, by so many standard errors of the difference."""
    spread = math.hypot(*(t.std() / len(t) ** 0.5 for t in (errors, others)))
    assert others.mean() - errors.mean() > ERRORS * spread


@pytest.mark.parametrize("kind", ["positive", "hyperbolic"])
def test_orthogonal_features_estimate_better_than_independent_ones(kind):
    features = D if kind == "positive" else 2 * D
    orthogonal, independent = (squared_errors(kind=kind, features=features, orthogonal=o) for o in (True, False))
    assert_smaller(orthogonal, independent)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_hyperbolic_features_estimate_better_than_positive_ones(orthogonal):
    """With the same projections, so with twice the features."""
    hyperbolic = squared_errors(kind="hyperbolic", features=2 * D, orthogonal=orthogonal)
    assert_smaller(hyperbolic, squared_errors(kind="positive", features=D, orthogonal=orthogonal))


# Exponents out of range, in causal order

N = 200
AT = 100  # where there is a change of norms, in the middle of a block in the middle of a chunk
LEFT = (torch.arange(N) >= AT)[None]


def logarithms(made, x):
    """log phi(x), literally, up to the same constant everywhere."""
    x = x / D**0.25
    u = x @ made.projection_PD.to(x.dtype).T
    if made.kind == "hyperbolic":
        u = torch.cat([u, -u], -1)
    return u if made.kind == "exp" else u - x.square().sum(-1, keepdim=True) / 2


def exact(made, q, k, v, keep=None):
    """The formula in logarithms: exp(-|k|^2 / 2) leaves float64 too."""
    logit_BHNM = (logarithms(made, q)[:, :, :, None] + logarithms(made, k)[:, :, None]).logsumexp(-1)
    sees = torch.ones(N, N).tril(0 if made.causal else N).bool()
    if keep is not None:
        sees = sees & keep[:, None, None]
    return logit_BHNM.masked_fill(~sees, -torch.inf).softmax(-1).nan_to_num(0) @ v


def large(which):
    """Inputs in float32, and their mask."""
    if isinstance(which, int):
        q, k, v = qkv(N)
        scale = (which / (q @ k.mT / D**0.5).abs().max()) ** 0.5
        q, k = q * scale, k * scale
    else:
        q, k, v = qkv(N, 1.5)
        steady = torch.logspace(-1, 1.5, N, dtype=torch.float64)[:, None]
        if which in ("growing", "shrinking"):
            k = k * (steady if which == "growing" else steady.flip(0))
        else:
            k[:, :, AT] *= 1000 / k[:, :, AT].norm(dim=-1, keepdim=True)
    return [t.float() for t in (q, k, v)], LEFT if which == "padded" else None


LARGE = pytest.mark.parametrize("which", [100, 300, "growing", "shrinking", "huge", "padded"])
KIND = pytest.mark.parametrize("kind", EXPONENTIAL)


def near(found, expected, tolerance, least=0.0):
    """Finite, and off by so much of the largest expected value."""
    assert found.isfinite().all()
    allowed = tolerance * max(least, expected.abs().max().item())
    assert (found - expected).abs().max().item() <= allowed


def streamed(made, q, k, v, keep, size):
    state, outputs = made.begin(1, q), []
    keeps = [None] * -(-N // size) if keep is None else keep.split(size, 1)
    for *chunk, kept in zip(*(t.split(size, 2) for t in (q, k, v)), keeps, strict=True):
        y, state = made.extend(*chunk, state, kept)
        outputs.append(y)
    return torch.cat(outputs, 2)


@pytest.mark.parametrize("kind", EXPONENTIAL)
def test_the_formula_in_logarithms_is_the_formula(kind):
    made = core(kind, causal=True).double()
    for size in (0.5, 4.0):
        q, k, v = qkv(N, size)
        assert_close(exact(made, q, k, v), made.formula(q, k, v), rtol=1e-9, atol=1e-9)
    assert_close(exact(made, q, k, v, LEFT), made.formula(q, k, v, LEFT), rtol=1e-9, atol=1e-9)


@LARGE
@KIND
@CAUSAL
def test_large_norms(kind, which, causal, monkeypatch):
    """Whole, in small chunks, streamed in chunks and one by one, and the gradients: as in float64."""
    made = core(kind, causal)
    inputs, keep = large(which)
    inputs = [t.requires_grad_() for t in inputs]
    wide = [t.detach().double().requires_grad_() for t in inputs]
    expected = exact(made, *wide, keep)
    wanted = learned(expected, wide)

    def agrees(y):
        near(y, expected, 1e-4)
        for found, gradient in zip(learned(y, inputs), wanted, strict=True):
            near(found, gradient, 1e-3, least=1.0)

    for cached in (sums.CACHED, 1):  # in one chunk, and in chunks of one block
        monkeypatch.setattr(sums, "CACHED", cached)
        agrees(made.attend(*inputs, keep))
    if causal:
        agrees(streamed(made, *inputs, keep, 37))
        with torch.no_grad():
            near(streamed(made, *inputs, keep, 1), expected, 1e-4)


@pytest.mark.parametrize(
    ("kind", "which"), [("exp", "growing"), ("exp", 300), ("positive", "shrinking"), ("hyperbolic", "shrinking")]
)
def test_the_shift_is_raised_many_times_there(kind, which, monkeypatch):
    """Or the test above would show little. Growing norms raise exponents, and shrinking ones those with a norm."""
    found = []
    raised = sums.raise_shift
    monkeypatch.setattr(sums, "raise_shift", lambda *given: found.append(raised(*given)) or found[-1])
    core(kind, causal=True).attend(*large(which)[0])
    assert sum(found) == N
    assert len(found) >= (4 if which == 300 else 8)


@pytest.mark.parametrize("cut", [1, 63, 64, AT, N - 1])
@KIND
@torch.no_grad()
def test_a_huge_future_key_is_not_seen_before(kind, cut):
    """Bit by bit in float32: a key far above all earlier ones (huge for exp; for the others, small after huge ones)."""
    made = core(kind, causal=True)
    q, k, v = qkv(N, dtype=torch.float32)
    for early, late in ((1, 30), (1, 1000), (30, 1), (1000, 0.1)):
        k_ = k.clone()
        k_[:, :, :cut] *= early
        level = torch.cat([k_[:, :, :cut], early * k[:, :, cut:]], 2)
        before = made.attend(q, level, v)[:, :, :cut]
        for future in (late * k[:, :, cut:], torch.cat([late * k[:, :, cut : cut + 1], level[:, :, cut + 1 :]], 2)):
            y = made.attend(q, torch.cat([k_[:, :, :cut], future], 2), v)
            assert y.isfinite().all()
            assert torch.equal(y[:, :, :cut], before)


@KIND
def test_the_gradient_of_a_huge_future_key_is_zero(kind):
    made = core(kind, causal=True)
    for early, late in ((1, 30), (30, 1)):
        q, k, v = qkv(N, dtype=torch.float32)
        k[:, :, :AT] *= early
        k[:, :, AT:] *= late
        inputs = [t.requires_grad_() for t in (q, k, v)]
        for gradient in torch.autograd.grad(made.attend(*inputs)[:, :, :AT].sum(), inputs):
            assert gradient.isfinite().all()
            assert not gradient[:, :, AT:].any()


@KIND
@torch.no_grad()
def test_a_raised_shift_leaves_an_older_state_alone(kind):
    made = core(kind, causal=True)
    q, k, v = qkv(N, dtype=torch.float32)
    k[:, :, :AT] *= 30
    first, rest, huge = slice(AT), slice(AT, N), k.clone()
    huge[:, :, AT:] *= 900 if kind == "exp" else 1 / 900
    _, state = made.extend(*(t[:, :, first] for t in (q, k, v)), made.begin(1, q))
    expected, _ = made.extend(*(t[:, :, rest] for t in (q, k, v)), state)
    kept = copy.deepcopy(state)
    made.extend(*(t[:, :, rest] for t in (q, huge, v)), state)
    assert all(torch.equal(a, b) for a, b in zip(state[:3], kept[:3], strict=True))
    again, _ = made.extend(*(t[:, :, rest] for t in (q, k, v)), state)
    assert torch.equal(again, expected)
