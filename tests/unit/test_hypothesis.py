"""Shapes and options thrown at every mechanism: a correct result, or a refusal of our own, and never a crash inside.

Found by `specs()`: a new mechanism is thrown at too, its own options included.
"""

import inspect
from math import prod
from typing import get_args

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import anyformer as af
from anyformer.card import find, specs
from anyformer.catalog import mechanism

CHECKS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=250,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
ODD = [0, -1, -(2**70), 2**70, 2.0, 1.5, float("nan"), "3", "", None, True, [2], torch.tensor(2)]
SIZES = [1, 2, 3, 4, 5, 6, 8, 16]
LENGTHS = [1, 2, 3, 5, 16, 17, 64, 65, 0]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ALL_DTYPES = [*FLOATS, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.float8_e4m3fn]
NEAR = {torch.float64: 1e-9, torch.float32: 1e-4}


def seldom(draw, usual, odd):
    """Mostly the usual; what is odd once in six times."""
    return draw(odd) if draw(st.integers(0, 5)) == 5 else draw(usual)


def own_options(spec):
    """The options of the mechanism beyond those that all have."""
    common = {"dim", "heads", "head_dim", "causal", "self"}
    return {n: p for n, p in inspect.signature(mechanism(spec)).parameters.items() if n not in common}


def some_options(draw, spec, core):
    """The card's tiny setting with some of it changed."""
    entry, variant = find(spec)
    card = entry.card.of(variant)
    options = {n: v for n, v in card.tiny.items() if n not in entry.card.variants.get(variant or "", {})}
    if core:
        options["head_dim"] = options.get("head_dim", options.pop("dim") // options["heads"])
    if card.causal == "only" or draw(st.booleans()):
        options["causal"] = card.causal == "only" or seldom(
            draw, st.just(card.causal != "no"), st.sampled_from([True, *ODD])
        )
    names = ["heads", "head_dim", *([] if core else ["dim", "key_heads", "bias"]), *own_options(spec)]
    for name in draw(st.lists(st.sampled_from(names), max_size=2)):
        parameter = own_options(spec).get(name)
        words = [w for w in get_args(parameter.annotation) if isinstance(w, str)] if parameter else []
        usual = [True, False] if name == "bias" else words or SIZES
        options[name] = seldom(draw, st.sampled_from(usual), st.sampled_from(ODD))
    if draw(st.integers(0, 19)) == 19:
        options[draw(st.sampled_from(["windows", "Heads", "dropout", "self", "card"]))] = 1
    return options


def some_length(draw, spec):
    """Any, or as many as the grid of the tiny setting holds."""
    grid = find(spec)[0].card.tiny.get("grid")
    return seldom(draw, st.just(prod(grid)), st.sampled_from(LENGTHS)) if grid else draw(st.sampled_from(LENGTHS))


def refused(call, ours):
    """The result of a call, or None where it was refused as we refuse: anything else is a failure."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        refusal = error
    frame = refusal.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    innermost = frame.tb_frame.f_code.co_filename
    assert innermost.startswith(ours), f"refused inside {innermost}, line {frame.tb_lineno}: {refusal}"
    assert "\n" not in str(refusal)
    assert len(str(refusal)) > 20
    event("refused")
    return None


def random(shape, dtype, seed=0):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(dtype)


def some_mask(draw, batch, length):
    if draw(st.booleans()):
        return None
    shape = seldom(
        draw, st.just((batch, length)), st.sampled_from([(length,), (batch, length + 1), (1, batch, length)])
    )
    keep = random(shape, torch.float64, seed=3) > draw(st.sampled_from([-9.0, 0.0, 9.0]))
    return keep.to(seldom(draw, st.just(torch.bool), st.sampled_from([torch.float32, torch.int64])))


def same(found, expected, shape, dtype):
    assert found.shape == shape
    assert found.dtype == dtype
    assert found.isfinite().all()
    if dtype in NEAR:
        torch.testing.assert_close(found, expected, rtol=NEAR[dtype], atol=NEAR[dtype])
    event("computed")


def seeded(call):
    torch.manual_seed(7)
    return call()


@CHECKS
@given(st.data())
def test_a_layer_computes_its_formula_or_refuses(source, data):
    draw = data.draw
    spec = draw(st.sampled_from(specs()))
    options = some_options(draw, spec, core=False)
    torch.manual_seed(0)
    layer = refused(lambda: af.build(spec, **options), str(source))
    if layer is None:
        return
    dtype = draw(st.sampled_from(FLOATS))
    layer = layer.to(dtype).eval()
    batch, length = draw(st.sampled_from([1, 2, 3, 0])), some_length(draw, spec)
    shape = seldom(
        draw,
        st.just((batch, length, layer.dim)),
        st.sampled_from([(length, layer.dim), (batch, length, layer.dim + 1), ()]),
    )
    x = random(shape, torch.float32).to(seldom(draw, st.just(dtype), st.sampled_from(ALL_DTYPES)))
    context, keys = None, length
    if draw(st.booleans()):
        keys = some_length(draw, spec)
        context = random((seldom(draw, st.just(batch), st.just(batch + 1)), keys, layer.dim), dtype, seed=1)
    keep = some_mask(draw, batch, keys)
    with torch.no_grad():
        y = refused(lambda: seeded(lambda: layer(x, context, keep=keep)), str(source))
        if y is not None:
            same(y, seeded(lambda: layer.formula(x, context, keep=keep)), x.shape, dtype)


@CHECKS
@given(st.data())
def test_a_core_computes_its_formula_or_refuses(source, data):
    draw = data.draw
    spec = draw(st.sampled_from([s for s in specs() if find(s)[0].card.slot == "attention"]))
    options = some_options(draw, spec, core=True)
    torch.manual_seed(0)
    core = refused(lambda: af.core(spec, **options), str(source))
    if core is None:
        return
    dtype = draw(st.sampled_from(FLOATS))
    core = core.to(dtype).eval()
    batch, queries, width = draw(st.sampled_from([1, 2, 0])), some_length(draw, spec), core.head_dim
    keys = seldom(draw, st.just(queries), st.sampled_from(LENGTHS))
    key_heads = seldom(draw, st.just(core.heads), st.sampled_from([0, 1, 2, 3]))
    shapes = [
        (batch, core.heads, queries, width),
        (batch, key_heads, keys, width),
        (batch, key_heads, keys, seldom(draw, st.just(width), st.sampled_from([0, 1, 5]))),
    ]
    inputs = [random(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    if draw(st.integers(0, 4)) == 4:
        spoiled = draw(st.integers(0, 2))
        t = inputs[spoiled]
        inputs[spoiled] = draw(
            st.sampled_from(
                [t[..., :-1], t[0] if batch else t, t.unsqueeze(0), t.to(torch.int64), t.to("meta"), t[:, 1:]]
            )
        )
    keep = some_mask(draw, batch, keys)
    with torch.no_grad():
        y = refused(lambda: seeded(lambda: core.attend(*inputs, keep)), str(source))
        if y is not None:
            shape = (*inputs[0].shape[:3], inputs[2].shape[3])
            same(y, seeded(lambda: core.formula(*inputs, keep)), shape, dtype)


@CHECKS
@given(st.data())
def test_streaming_equals_the_whole_or_refuses(source, data):
    draw = data.draw
    spec = draw(st.sampled_from([s for s in specs() if find(s)[0].card.of(find(s)[1]).stream != "none"]))
    options = some_options(draw, spec, core=False)
    if find(spec)[0].card.causal == "option":
        options["causal"] = seldom(draw, st.just(True), st.just(False))
    torch.manual_seed(0)
    layer = refused(lambda: af.build(spec, **options), str(source))
    if layer is None:
        return
    layer = layer.double().eval()
    batch = draw(st.sampled_from([1, 2, 3]))
    state = refused(lambda: layer.start(seldom(draw, st.just(batch), st.sampled_from(ODD))), str(source))
    if state is None:
        return
    chunks, keeps, outputs = [], [], []
    for n in range(draw(st.integers(1, 5))):
        chunk = random((batch, some_length(draw, spec), layer.dim), torch.float64, seed=n)
        keep = some_mask(draw, batch, chunk.shape[1])
        with torch.no_grad():
            found = refused(lambda: layer.stream(chunk, state, keep=keep), str(source))  # noqa: B023
        if found is None:  # and the state is as it was
            continue
        y, state = found
        chunks.append(chunk)
        keeps.append(torch.ones(chunk.shape[:2], dtype=torch.bool) if keep is None else keep)
        outputs.append(y)
    if chunks:
        x, keep = torch.cat(chunks, 1), torch.cat(keeps, 1)
        with torch.no_grad():
            same(torch.cat(outputs, 1), layer(x, keep=keep), x.shape, torch.float64)


@CHECKS
@given(st.one_of(st.text(max_size=12), st.sampled_from([*specs(), None, 3, b"softmax", ("softmax",)]), st.floats()))
def test_any_name_is_found_or_refused(source, name):
    for make in (lambda: af.build(name, dim=16), lambda: af.core(name, heads=2, head_dim=8)):
        refused(make, str(source))


def test_a_refusal_from_within_torch_would_be_noticed(source):
    with pytest.raises(AssertionError, match=r"refused inside .*torch"):
        refused(lambda: torch.nn.Linear(2, 3)(None), str(source))
    with pytest.raises(RuntimeError):
        refused(lambda: torch.ones(2) @ torch.ones(3), str(source))
