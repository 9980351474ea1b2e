"""The slots: projections, masks, states and what they refuse."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import anyformer as af
from anyformer.card import specs
from anyformer.contract import Cache, Context


def fact(spec):
    name, _, variant = spec.partition(":")
    return af.mechanisms()[name].of(variant)


ATTENTION = [s for s in specs() if fact(s).slot == "attention"]
STREAMING = [s for s in ATTENTION if fact(s).stream == "exact"]


def layer(spec="softmax", **options):
    torch.manual_seed(0)
    return af.build(spec, **{**fact(spec).tiny, **options}).double().eval()


def tokens(batch, length, dim=16, seed=1):
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, dim, dtype=torch.float64, generator=drawn)


def streamed(made, x, state, sizes=None):
    outputs = []
    for chunk in x.split(sizes or 1, 1):
        y, state = made.stream(chunk, state)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def tensors(state):
    return [t for t in state if isinstance(t, Tensor)]


def each(state, change):
    """The state with every tensor in it changed, as a beam search does: knowing nothing but that it is a tuple."""
    if isinstance(state, Tensor):
        return change(state)
    return type(state)(*(each(part, change) for part in state)) if isinstance(state, tuple) else state


# State


@pytest.mark.parametrize("key_heads", [2, 1])
def test_a_cache_does_not_copy_itself_per_token(key_heads):
    made, x = layer(causal=True, key_heads=key_heads), tokens(1, 500)
    places, copied = set(), 0
    with torch.no_grad():
        state = made.start(1)
        for n in range(500):
            _, state = made.stream(x[:, n : n + 1], state)
            place = state.k_BGSD.data_ptr()
            copied += 0 if place in places else n
            places.add(place)
    assert state.k_BGSD.shape[1] == key_heads
    assert len(places) <= 2 * math.log2(500)
    assert copied <= 2 * 500
    assert state.k_BGSD.shape[2] <= 2 * 500 + 16


def test_a_windowed_cache_stays_small_and_seldom_copies():
    made, x = layer("local", window=8, causal=True), tokens(1, 500)
    largest, places = 0, []
    with torch.no_grad():
        state = made.start(1)
        for n in range(500):
            _, state = made.stream(x[:, n : n + 1], state)
            largest = max(largest, state.k_BGSD.shape[2])
            places.append(state.k_BGSD.data_ptr())
    assert largest <= 2 * 8 + 16
    assert sum(a != b for a, b in pairwise(places)) <= 500 / 8


def test_a_windowed_state_does_not_keep_a_long_first_chunk():
    made = layer("local", window=8, causal=True)
    with torch.no_grad():
        _, state = made.stream(tokens(1, 300), made.start(1))
        _, state = streamed(made, tokens(1, 2 * 300 + 20), state)
    assert state.k_BGSD.shape[2] <= 2 * 8 + 16


@pytest.mark.parametrize("spec", STREAMING)
def test_an_old_state_stays_valid(spec):
    made, x = layer(spec, causal=True), tokens(2, 12)
    with torch.no_grad():
        _, old = streamed(made, x[:, :5], made.start(2))
        before = [t.clone() for t in tensors(old)]
        first, new = streamed(made, x[:, 5:], old)
        other, _ = streamed(made, -2 * x[:, 5:], old)
        onward, _ = streamed(made, x[:, :2], new)
        again, _ = streamed(made, x[:, 5:], old)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert_close(onward, made(torch.cat([x, x[:, :2]], 1))[:, 12:])
    seen = slice(None, old.position)
    for t, was in zip(tensors(old)[:2], before[:2], strict=False):
        assert torch.equal(t[:, :, seen], was[:, :, seen])


@pytest.mark.parametrize("spec", STREAMING)
def test_a_state_is_a_tuple_of_batch_first_tensors_and_a_position(spec):
    made = layer(spec, causal=True)
    _, state = streamed(made, tokens(3, 4), made.start(3))
    assert isinstance(state, tuple)
    assert hasattr(state, "_fields")
    assert state.position == 4
    assert all(t.shape[0] == 3 for t in tensors(state))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("spec", STREAMING)
def test_a_state_is_reordered_by_index_select(spec, padded):
    """Beam search: some beams go on twice, some end."""
    made, x, order = layer(spec, causal=True), tokens(3, 9), torch.tensor([2, 0, 0, 1])
    keep = torch.ones(3, 9, dtype=torch.bool)
    keep[1, :2] = not padded
    with torch.no_grad():
        _, state = made.stream(x[:, :5], made.start(3), keep=keep[:, :5] if padded else None)
        beams = each(state, lambda t: t.index_select(0, order))
        y, _ = streamed(made, x[order, 5:], beams)
        original, _ = streamed(made, x[:, 5:], state)
        whole = made(x, keep=keep if padded else None)[:, 5:]
    assert_close(y, whole[order])
    assert_close(original, whole)


@pytest.mark.parametrize("spec", STREAMING)
def test_a_copied_state_goes_its_own_way(spec):
    made, x = layer(spec, causal=True), tokens(2, 9)
    with torch.no_grad():
        _, state = streamed(made, x[:, :5], made.start(2))
        copied = copy.deepcopy(state)
        y, _ = streamed(made, x[:, 5:], state)
        z, _ = streamed(made, x[:, 5:], copied)
        streamed(made, 3 * x[:, 5:], copied)
    assert torch.equal(y, z)
    assert not {t.data_ptr() for t in tensors(state)} & {t.data_ptr() for t in tensors(copied)}


@pytest.mark.parametrize("spec", STREAMING)
def test_a_state_can_leave_inference_mode(spec):
    made, x = layer(spec, causal=True), tokens(2, 9)
    with torch.inference_mode():
        _, state = streamed(made, x[:, :5], made.start(2))
    with torch.no_grad():
        y, _ = streamed(made, x[:, 5:], state)
    assert_close(y, made(x)[:, 5:].detach())


@pytest.mark.parametrize("learns", [("q",), ("k",), ("v",), ("out",), ("q", "k", "v", "out")])
@pytest.mark.parametrize("spec", STREAMING)
def test_streaming_can_be_learned_through(spec, learns):
    """Also when only some projections learn: a cache written in place would spoil the graph."""
    made, x = layer(spec, causal=True), tokens(2, 7)
    for name, weight in made.named_parameters():
        weight.requires_grad_(name.partition(".")[0] in learns)
    wanted = [w for w in made.parameters() if w.requires_grad]
    y, _ = streamed(made, x, made.start(2))
    found = torch.autograd.grad(y.square().sum(), wanted)
    for a, b in zip(found, torch.autograd.grad(made(x).square().sum(), wanted), strict=True):
        assert_close(a, b)


def test_a_chunk_must_fit_its_state():
    made, x = layer(causal=True), tokens(2, 4)
    _, state = made.stream(x, made.start(2))
    q = torch.randn(2, 2, 1, 8, dtype=torch.float64)
    for call, kind, said in (
        (lambda: made.stream(x[:1], state), ValueError, "the state is for a batch of 2, not 1"),
        (lambda: made.stream(x, None), TypeError, "Softmax streams with the state that its own start or begin returns"),
        (lambda: made.stream(x, layer("linear", causal=True).start(2)), TypeError, "Softmax streams with the state"),
        (
            lambda: made.core.extend(q, q[:, :1], q[:, :1], state),
            ValueError,
            "k has 1 heads of 8, and the tokens before",
        ),
        (lambda: made.core.extend(q, q, q[..., :3], state), ValueError, "v has 2 heads of 3, and the tokens before"),
        (lambda: made.core.extend(q, q.expand(2, 2, 2, 8), q.expand(2, 2, 2, 8), state), ValueError, "as many queries"),
        (lambda: made.core.extend(*[q.float()] * 3, state), ValueError, "the state has dtype torch.float64"),
        (lambda: made.core.extend(*[q.to("meta")] * 3, state), ValueError, "the state is on cpu and the chunk on meta"),
        (lambda: made.start(0), ValueError, "batch must be at least 1"),
        (lambda: made.start(2, keep=torch.ones(2, 4).bool()), ValueError, "start takes keep only with a context"),
        (lambda: made.start(2, context=x), ValueError, "a prepared context has no order with the chunks to come"),
        (lambda: layer().start(2), ValueError, "Softmax streams only when causal: build it with causal=True"),
    ):
        with pytest.raises(kind) as refusal:
            call()
        assert said in str(refusal.value)


CROSSING = [s for s in STREAMING if fact(s).cross]


@pytest.mark.parametrize("spec", CROSSING)
def test_a_prepared_context_is_a_state_too(spec):
    made, x, context = layer(spec), tokens(3, 4), tokens(3, 7, seed=2)
    keep, order = torch.ones(3, 7, dtype=torch.bool), torch.tensor([1, 1, 0])
    keep[0, 3:] = False
    state = made.start(3, context=context, keep=keep)
    assert isinstance(state, Context)
    y, after = made.stream(x, each(state, lambda t: t.index_select(0, order)))
    assert after.position == 4
    assert_close(y, made(x, context[order], keep=keep[order]))


@pytest.mark.parametrize("spec", CROSSING)
def test_a_prepared_context_refuses_what_does_not_fit(spec):
    made, x = layer(spec), tokens(2, 4)
    with pytest.raises(ValueError, match="the context has a batch of 2, and start was asked for 3"):
        made.start(3, context=x)
    with pytest.raises(ValueError, match="the state is for a batch of 1, not 2"):
        made.stream(x, made.start(1, context=x[:1]))
    with pytest.raises(ValueError, match=r"were given to start\(\)"):
        made.stream(x, made.start(2, context=x), keep=torch.ones(2, 4).bool())


def test_a_mechanism_without_streaming_says_who_streams(drop):
    drop()
    made = af.build("mean_of_all", dim=8, heads=2, causal=True)
    with pytest.raises(ValueError, match=r"Mean does not stream; these do: .*softmax"):
        made.start(2)


def test_a_chunk_with_a_mask_may_follow_one_without():
    made, x = layer(causal=True), tokens(2, 6)
    keep = torch.tensor([[1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 1]]).bool()
    with torch.no_grad():
        first, state = made.stream(x[:, :3], made.start(2))
        assert isinstance(state, Cache)
        assert state.keep_BS is None
        second, state = made.stream(x[:, 3:5], state, keep=keep[:, 3:5])
        third, _ = made.stream(x[:, 5:], state)
    assert_close(torch.cat([first, second, third], 1), made(x, keep=keep).detach())


# Heads and projections


@pytest.mark.parametrize("spec", ATTENTION)
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_grouped_key_heads_are_repeated_ones(spec, key_heads):
    grouped = layer(spec, heads=4, key_heads=key_heads, causal=fact(spec).causal == "only")
    full = layer(spec, heads=4, causal=fact(spec).causal == "only")
    weights = grouped.state_dict()
    for part in ("k.weight", "v.weight"):
        weights[part] = weights[part].unflatten(0, (key_heads, -1)).repeat_interleave(4 // key_heads, 0).flatten(0, 1)
    full.load_state_dict(weights)
    x = tokens(2, 9)
    assert_close(grouped(x), full(x))


def test_head_dim_need_not_be_dim_over_heads():
    assert layer(dim=16, heads=3, head_dim=5)(tokens(2, 4)).shape == (2, 4, 16)


def test_a_layer_shows_its_options():
    assert "dim=16, heads=2, head_dim=8, causal=False" in repr(layer())


# Causal order


@pytest.mark.parametrize("spec", CROSSING)
def test_causal_queries_are_the_last_positions(spec):
    made, x = layer(spec, causal=True), tokens(2, 9)
    assert_close(made(x[:, 6:], x), made(x)[:, 6:])
    with pytest.raises(ValueError, match="so 9 queries need at least as many keys, not 3"):
        made(x, x[:, :3])


# What is refused


META = torch.device("meta")


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda f, x: f(x[0]), ValueError, r"x must have shape \(batch, length, 16\), not \(5, 16\)"),
        (lambda f, x: f(x[None]), ValueError, r"not \(1, 2, 5, 16\)"),
        (lambda f, x: f(x[..., :7]), ValueError, r"x must have shape \(batch, length, 16\), not \(2, 5, 7\)"),
        (lambda f, x: f(x, x[..., :7]), ValueError, r"context must have shape \(batch, length, 16\)"),
        (lambda f, x: f(x.tolist()), TypeError, r"x must be a tensor of shape \(batch, length, 16\), not list"),
        (lambda f, x: f(x, x.tolist()), TypeError, "context must be a tensor"),
        (lambda f, x: f(None), TypeError, "not NoneType"),
        (lambda f, x: f(x[:, :0]), ValueError, r"x is empty \(shape \(2, 0, 16\)\)"),
        (lambda f, x: f(x[:0]), ValueError, r"x is empty \(shape \(0, 5, 16\)\)"),
        (lambda f, x: f(x, x[:, :0]), ValueError, "context is empty"),
        (lambda f, x: f(x, x[:1]), ValueError, "q has a batch of 2 and k one of 1"),
        (
            lambda f, x: f(x.long()),
            ValueError,
            "x must hold floating-point numbers of 16 bits or more, not torch.int64",
        ),
        (lambda f, x: f(x.to(torch.complex64)), ValueError, "not torch.complex64"),
        (lambda f, x: f(x.to(torch.float8_e4m3fn)), ValueError, "16 bits or more, not torch.float8_e4m3fn"),
        (lambda f, x: f(x.to_sparse()), ValueError, r"x must be a dense tensor, not torch.sparse_coo; .*to_dense"),
        (lambda f, x: f(x.float()), ValueError, "x has dtype torch.float32 and the layer torch.float64"),
        (lambda f, x: f(x, x.float()), ValueError, "context has dtype torch.float32"),
        (lambda f, x: f(x.to(META)), ValueError, r"x is on meta and the layer on cpu; move one with \.to"),
        (lambda f, x: f(x.float().to(META)), ValueError, "x is on meta"),
        (lambda f, x: f(x, x.to(META)), ValueError, "context is on meta"),
        (lambda f, x: f.to(META)(x), ValueError, "x is on cpu and the layer on meta"),
        (
            lambda f, x: f(x, keep=torch.ones(2, 4).bool()),
            ValueError,
            r"keep must have shape \(2, 5\), one entry per key",
        ),
        (lambda f, x: f(x, keep=torch.ones(5).bool()), ValueError, r"keep must have shape \(2, 5\)"),
        (lambda f, x: f(x, keep=torch.ones(2, 1).bool()), ValueError, r"not \(2, 1\)"),
        (lambda f, x: f(x, keep=torch.ones(1, 5).bool()), ValueError, r"not \(1, 5\)"),
        (lambda f, x: f(x, x[:, :3], keep=torch.ones(2, 5).bool()), ValueError, r"keep must have shape \(2, 3\)"),
        (
            lambda f, x: f(x, keep=torch.ones(2, 5)),
            ValueError,
            r"keep must be bool .*, not torch.float32; .* mask == 1",
        ),
        (lambda f, x: f(x, keep=torch.ones(2, 5).long()), ValueError, "keep must be bool"),
        (
            lambda f, x: f(x, keep=[[True] * 5] * 2),
            TypeError,
            r"keep must be a bool tensor of shape \(2, 5\), not list",
        ),
        (lambda f, x: f(x, keep=torch.ones(2, 5).bool().to(META)), ValueError, "keep is on meta and the tokens on cpu"),
        (lambda f, x: f(x, keep=torch.ones(2, 5).bool().to_sparse()), ValueError, "keep must be a dense tensor"),
        (lambda f, x: f(x, mask=None), TypeError, "mask"),
    ],
)
def test_a_layer_refuses_what_does_not_fit(call, kind, said):
    with pytest.raises(kind, match=said):
        call(layer(), tokens(2, 5))


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda f, q: f(q[0], q, q), ValueError, r"q must have shape \(batch, heads, length, dim\), not \(2, 5, 8\)"),
        (lambda f, q: f(q, q[0], q), ValueError, r"k must have shape \(batch, heads, length, dim\)"),
        (lambda f, q: f(q, q, None), TypeError, "v must be a tensor of shape .*, not NoneType"),
        (lambda f, q: f(q[:, :1], q, q), ValueError, r"q must have 2 heads of 8, not shape \(3, 1, 5, 8\)"),
        (lambda f, q: f(q[..., :4], q, q), ValueError, "q must have 2 heads of 8"),
        (lambda f, q: f(q, q[..., :4], q), ValueError, "k must have heads of 8 like q"),
        (lambda f, q: f(q, q, q[:, :1]), ValueError, "k and v must agree in batch, heads and length"),
        (lambda f, q: f(q, q, q[:, :, :4]), ValueError, "k and v must agree in batch, heads and length"),
        (lambda f, q: f(q, q, q[..., :0]), ValueError, "k and v must"),
        (lambda f, q: f(q, q[:, :0], q[:, :0]), ValueError, "k has 0 heads, which do not divide q's 2"),
        (
            lambda f, q: f(q, q.repeat(1, 2, 1, 1), q.repeat(1, 2, 1, 1)),
            ValueError,
            "k has 4 heads, which do not divide",
        ),
        (lambda f, q: f(q, q[:1], q[:1]), ValueError, "q has a batch of 3 and k one of 1"),
        (lambda f, q: f(q, q[:, :, :0], q[:, :, :0]), ValueError, "k is empty"),
        (lambda f, q: f(q, q.float(), q), ValueError, "k has dtype torch.float32 and q torch.float64"),
        (lambda f, q: f(q, q, q.to(META)), ValueError, "v is on meta and q on cpu"),
        (lambda f, q: f(q, q, q, torch.ones(3, 4).bool()), ValueError, r"keep must have shape \(3, 5\)"),
        (lambda f, q: f(q, q, q, torch.ones(3, 5)), ValueError, "keep must be bool"),
    ],
)
@pytest.mark.parametrize("form", ["attend", "formula"])
@pytest.mark.parametrize("name", ["softmax", "linear", "local"])
def test_a_core_refuses_what_does_not_fit(name, form, call, kind, said):
    core = af.core(name, heads=2, head_dim=8)
    with pytest.raises(kind, match=said):
        call(getattr(core, form), torch.randn(3, 2, 5, 8, dtype=torch.float64))


def test_a_mechanism_without_cross_attention_says_who_has_it():
    made, x = layer("local"), tokens(2, 5)
    message = "Local has no cross-attention, so it takes no context; these have: .*softmax"
    with pytest.raises(ValueError, match=message):
        made(x, tokens(2, 5, seed=2))
    with pytest.raises(ValueError, match=message):
        made.start(2, context=x)
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match=r"so 5 queries need 5 keys, not 4; these have it: .*softmax"):
        made.core.attend(q, q[:, :, :4], q[:, :, :4])


def test_autocast_does_not_excuse_float64():
    made = layer().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(tokens(2, 5).half()).dtype == torch.bfloat16
        with pytest.raises(ValueError, match=r"x has dtype torch\.float64 and the layer torch\.float32"):
            made(tokens(2, 5))
    assert layer()(tokens(2, 5)).dtype == torch.float64


@pytest.mark.parametrize("heads", [3, 5, 7])
def test_dim_must_divide_into_heads(heads):
    with pytest.raises(ValueError, match=f"dim=16 does not divide into {heads} heads"):
        af.build("softmax", dim=16, heads=heads)


def test_padding_is_refused_where_the_card_has_none(drop):
    text = (drop().read_text()).replace("padding=True", "padding=False")
    drop(text=text)
    made = af.build("mean_of_all", dim=8, heads=2)
    with pytest.raises(ValueError, match=r"this mechanism takes no keep mask; these do: .*softmax"):
        made(torch.randn(2, 5, 8), keep=torch.ones(2, 5).bool())


def test_a_windowed_state_forgets_a_long_chunk():
    core = af.core("local", heads=2, head_dim=4, causal=True, window=8)
    q = torch.randn(1, 2, 300, 4)
    y, state = core.extend(q[:, :, :200], q[:, :, :200], q[:, :, :200], core.begin(1, q))
    assert state.k_BGSD.shape[2] < 3 * 8
    after, _ = core.extend(q[:, :, 200:], q[:, :, 200:], q[:, :, 200:], state)
    again, _ = core.extend(q[:, :, 200:], q[:, :, 200:], q[:, :, 200:], state)
    assert torch.equal(after, again)
    torch.testing.assert_close(torch.cat([y, after], 2), core.attend(q, q, q))
