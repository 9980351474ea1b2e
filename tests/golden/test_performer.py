"""Performer against performer-pytorch, on the same projection.

Where performer-pytorch is not the paper:
- It adds an epsilon to every feature and to the sums of causal order. Eq. 5 has none for softmax's features.
- A query's features are divided by their largest one before, not after, the factor exp(-|q|^2 / 2), and all keys'
  features by the largest of all keys. Both would cancel if there were no epsilon. With it they do not: in causal
  order the future shows in the past, and in high dimensions the epsilon outweighs the features.
- Its orthogonal directions are columns of torch.linalg.qr's Q, which are not uniformly distributed.
- `no_projection=True` is not generalized attention but that of Shen et al. 2018, arXiv:1812.01243.
"""

import sys

import pytest
import torch
from torch.testing import assert_close

import anyformer as af
from anyformer.mechanisms.kernel.performer import draw

B, H, D, F = 2, 3, 5, 12
ERRORS = 4.5  # standard errors: a chance of 7e-6

pytestmark = [
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:performer_pytorch"),
]
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
SIZES = pytest.mark.parametrize(
    ("queries", "keys", "causal"),
    [
        *[(1, 1, False), (9, 9, False), (4, 300, False), (300, 4, False)],
        *[(1, 1, True), (9, 9, True), (64, 64, True), (65, 65, True), (200, 200, True)],
    ],
)


@pytest.fixture
def performer(monkeypatch):
    found = pytest.importorskip("performer_pytorch.performer_pytorch")
    monkeypatch.setitem(sys.modules, "fast_transformers", None)  # causal order without its compiled extension
    return found


def core(variant, causal=False, head_dim=D, **options):
    torch.manual_seed(0)
    return af.core(f"performer:{variant}", heads=H, head_dim=head_dim, causal=causal, **options).double()


def fast_attention(performer, ours, **options):
    """Theirs with our projection."""
    theirs = performer.FastAttention(ours.head_dim, nb_features=ours.features, causal=ours.causal, **options)
    theirs.projection_matrix = ours.projection_PD
    return theirs


def qkv(queries, keys=None, value_dim=D, head_dim=D, seed=0, dtype=torch.float64):
    drawn = torch.Generator().manual_seed(seed)
    keys = keys or queries
    shapes = (queries, head_dim), (keys, head_dim), (keys, value_dim)
    return [torch.randn(B, H, *s, generator=drawn, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def softmax_features(performer, q, k, projection, eps=0.0):
    return [
        performer.softmax_kernel(t, projection_matrix=projection, is_query=query, eps=eps)
        for t, query in ((q, True), (k, False))
    ]


def attended(performer, fq, fk, v, causal, eps=0.0):
    if causal:
        return performer.causal_linear_attention_noncuda(fq, fk, v, eps=eps)
    return performer.linear_attention(fq, fk, v)


def gradients(y, tensors):
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape).sin()
    return torch.autograd.grad((y * weights).sum(), tensors)


def assert_same(got, expected, tensors, rtol=1e-9, atol=1e-10):
    assert_close(got, expected, rtol=rtol, atol=atol)
    for a, b in zip(gradients(got, tensors), gradients(expected, tensors), strict=True):
        assert_close(a, b, rtol=rtol, atol=atol)


# The same functions, once the epsilons are zero


@SIZES
def test_positive(performer, queries, keys, causal):
    q, k, v = qkv(queries, keys, value_dim=4)
    ours = core("positive", causal, features=F)
    features = softmax_features(performer, q, k, ours.projection_PD)
    assert_same(ours.attend(q, k, v), attended(performer, *features, v, causal), (q, k, v))


@SIZES
@pytest.mark.parametrize("projection", [True, False], ids=["projected", "plain"])
@pytest.mark.parametrize(
    ("variant", "kernel", "epsilon"), [("relu", torch.relu, 1e-3), ("relu", torch.relu, 0.2), ("exp", torch.exp, 0.0)]
)
def test_generalized(performer, variant, kernel, epsilon, projection, queries, keys, causal):
    q, k, v = qkv(queries, keys, value_dim=4)
    options = {"epsilon": epsilon} if variant == "relu" else {}
    ours = core(variant, causal, **({"features": F} if projection else {"projection": False}), **options)
    features = [
        performer.generalized_kernel(t, projection_matrix=ours.projection_PD, kernel_fn=kernel, kernel_epsilon=epsilon)
        for t in (q, k)
    ]
    assert_same(ours.attend(q, k, v), attended(performer, *features, v, causal), (q, k, v))


def test_relu_is_their_generalized_attention_as_shipped(performer):
    q, k, v = qkv(70)
    ours = core("relu", features=F)
    assert_same(ours.attend(q, k, v), fast_attention(performer, ours, generalized_attention=True)(q, k, v), (q, k, v))


@CAUSAL
def test_no_projection_is_another_mechanism(performer, causal):
    """Theirs is q's softmax over D and k's over the tokens (exp in causal order), where eq. 5 has f(q) and f(k).

    A feature map of exponentials forgives a factor a query or a feature, so that ours gives theirs on shifted inputs.
    """
    q, k, v = qkv(70)
    ours = core("exp", causal, projection=False)
    theirs = performer.FastAttention(D, causal=causal, no_projection=True)
    if causal:
        theirs.causal_linear_fn = lambda *qkv: performer.causal_linear_attention_noncuda(*qkv, eps=0)
    shift = 0 if causal else k.logsumexp(2, keepdim=True)
    expected = theirs(q, k, v)
    assert_same(ours.attend((q - shift) * D**0.25, k * D**0.25, v), expected, (q, k, v))
    assert (ours.attend(q, k, v) - expected).abs().max() > 0.01


# Their epsilons


def shares(performer, q, k, projection, causal):
    """How much of each query's weights is there without epsilons; and the part that 1e-6 has in a causal sum.

    Their weights are (a + e)(b + e) = ab + e (a + b + e) >= ab. The rest moves the output from ours towards some other
    mean of the values, so by no more than its share times their range; and the causal sum's epsilon, which is only in
    the denominator, makes a mean smaller by its share of that.
    """
    (a, b), (fq, fk) = (softmax_features(performer, q, k, projection, eps) for eps in (0.0, 1e-4))
    plain, whole = a @ b.mT, fq @ fk.mT
    if causal:
        plain, whole = plain.tril(), whole.tril()
    ours, theirs = plain.sum(-1, keepdim=True), whole.sum(-1, keepdim=True)
    extra = 1e-6 * fq.sum(-1, keepdim=True) if causal else 0 * theirs
    return 1 - ours / theirs, extra / (theirs + extra)


@CAUSAL
@pytest.mark.parametrize("size", [0.5, 1, 2])
def test_positive_as_shipped_is_off_by_its_epsilons(performer, size, causal):
    q, k, v = qkv(100)
    q, k = size * q, size * k
    ours = core("positive", causal, features=F)
    share, extra = shares(performer, q, k, ours.projection_PD, causal)
    off = (fast_attention(performer, ours)(q, k, v) - ours.attend(q, k, v)).abs()
    span = v.amax(2, keepdim=True) - v.amin(2, keepdim=True)
    bound = share * span + extra * v.abs().amax(2, keepdim=True)
    assert (off <= bound + 1e-12).all()
    assert (off > 0.01 * bound).any()  # the epsilon is really there


@torch.no_grad()
def test_in_high_dimensions_their_epsilon_outweighs_the_features(performer):
    """Normal queries and keys of 64 numbers, 256 features: what is left is nearly the plain mean of the values."""
    q, k, v = qkv(300, head_dim=64, value_dim=64)
    ours = core("positive", head_dim=64, features=256)
    share, _ = shares(performer, q, k, ours.projection_PD, causal=False)
    assert share.mean() > 0.95
    theirs, mean = fast_attention(performer, ours)(q, k, v), v.mean(2, keepdim=True)
    assert (theirs - mean).norm() < 0.3 * mean.expand_as(theirs).norm()
    assert (ours.attend(q, k, v) - mean).norm() > 3 * mean.expand_as(theirs).norm()


def test_causal_relu_as_shipped_is_off_by_its_epsilon(performer):
    """Only the sum's epsilon differs: the denominator grows by a factor of 1 + 1e-6 / (smallest sum of features)."""
    q, k, v = qkv(200)
    ours = core("relu", causal=True, features=F)
    got, expected = ours.attend(q, k, v), fast_attention(performer, ours, generalized_attention=True)(q, k, v)
    fk = performer.generalized_kernel(k, projection_matrix=ours.projection_PD)
    off = (got - expected).abs()
    assert (off <= 1.01e-6 / fk.cumsum(2).amin(-1, keepdim=True) * got.abs() + 1e-14).all()
    assert off.max() > 1e-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_their_causal_order_leaks_the_future(performer, dtype):
    """Through the maximum over all keys; without their epsilon it is lost in rounding, or all of the past is."""
    cut = 60
    q, k, v = qkv(100, dtype=dtype)
    ours = core("positive", causal=True, features=F).to(dtype)
    later = k.clone()
    later[:, :, cut:] *= 30

    def bare(q, k, v):
        return attended(performer, *softmax_features(performer, q, k, ours.projection_PD), v, causal=True)

    theirs = fast_attention(performer, ours)
    leaked = (theirs(q, later, v) - theirs(q, k, v))[:, :, :cut]
    assert leaked.abs().max() > 0.1
    assert not torch.equal(bare(q, later, v)[:, :, :cut], bare(q, k, v)[:, :, :cut])
    if dtype == torch.float32:
        assert bare(q, 4 * later, v)[:, :, :cut].isnan().any()
    for future in (later, 4 * later, later / 900):
        future = torch.cat([k[:, :, :cut], future[:, :, cut:]], 2)
        assert torch.equal(ours.attend(q, future, v)[:, :, :cut], ours.attend(q, k, v)[:, :, :cut])


# Orthogonal features

DRAWS = 1000


def their_draws(performer, count, rows):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [performer.gaussian_orthogonal_random_matrix(rows, D) for _ in range(count)]


def our_draws(count, rows):
    generator = torch.Generator().manual_seed(0)
    return [draw(rows, D, True, generator) for _ in range(count)]


def test_their_kernel_is_ours(performer):
    """The estimate of exp(q.k / sqrt(D)) is what softmax_kernel gives, times the largest terms that it took off."""
    q, k, _ = qkv(7)
    ours = core("positive", features=F)
    fq, fk = softmax_features(performer, q, k, ours.projection_PD)
    u, w = (t / D**0.25 @ ours.projection_PD.T for t in (q, k))
    largest = u.amax(-1, keepdim=True) + w.amax((-1, -2), keepdim=True)
    assert_close(fq @ fk.mT * largest.exp(), ours.kernel(q, k), rtol=1e-12, atol=0)


def test_their_orthogonal_directions_miss_half_of_the_space(performer):
    """Householder's QR gives R's diagonal one sign, where uniform directions need a random one."""
    theirs, ours = (
        torch.stack(drawn)[:, ::D, 0].sign()
        for drawn in (their_draws(performer, DRAWS, 2 * D), our_draws(DRAWS, 2 * D))
    )
    assert theirs.sum().abs() == theirs.numel() == 2 * DRAWS  # the first of a block: chance 2^-1999
    assert ours.sum().abs() <= ERRORS * ours.numel() ** 0.5


def test_their_orthogonal_features_are_biased(performer):
    """The estimate of exp(q.k / sqrt(D)), with q = k along the diagonal of the space, both ways."""
    x = torch.tensor([0.2, -0.2], dtype=torch.float64)[:, None, None, None].expand(2, 1, 1, D)
    ours = core("positive", features=D)
    true = (x.square().sum(-1) / D**0.5).exp().flatten()

    def bias(projections):
        """In standard errors."""
        found = []
        for projection in projections:
            ours.projection_PD = projection.double()
            found.append(ours.kernel(x, x).flatten() / true - 1)
        error = torch.stack(found)
        return error.mean(0) / (error.std(0) / DRAWS**0.5)

    theirs = bias(their_draws(performer, DRAWS, D))
    assert theirs[0] < -2 * ERRORS
    assert theirs[1] > 2 * ERRORS
    assert (bias(our_draws(DRAWS, D)).abs() < ERRORS).all()
