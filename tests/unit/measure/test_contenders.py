"""Who is measured does the work that it is measured for."""

import pytest
import torch

from anyformer.card import specs
from anyformer.measure.contenders import (
    COMPILED,
    LEVELS,
    MODES,
    UNCACHED,
    Sizes,
    contender,
    floor,
    made,
    refusal,
    state_bytes,
)
from anyformer.measure.floor import Limits
from anyformer.measure.memory import high_water_bytes, peak_bytes
from anyformer.measure.operations import operations

SIZES = Sizes(2, 2, 16, torch.float32, "cpu", {})
TAKEN = [
    (name, level, mode, causal)
    for name in specs()
    for level in LEVELS
    for mode in MODES
    for causal in (False, True)
    if not refusal(name, level, mode, causal) and (causal or mode != "decode")
]


@pytest.mark.parametrize(("name", "level", "mode", "causal"), TAKEN)
def test_everyone_runs_and_no_floor_is_above_what_is_counted(name, level, mode, causal):
    found = contender(name, level, mode, causal, 84, SIZES._replace(head_dim=64))
    if found.before:
        found.before()
    found.run()
    assert found.held() > 0
    counted = operations(found.run)
    if mode != "decode":
        assert 0 < found.operations <= counted
    assert found.operations == 0 or found.operations >= counted / 4  # and not far below it either


def test_every_refusal_has_a_reason_that_names_who_can():
    refused = [
        (name, level, mode, causal)
        for name in specs()
        for level in LEVELS
        for mode in MODES
        for causal in (False, True)
        if refusal(name, level, mode, causal)
    ]
    assert refused
    for who in refused:
        with pytest.raises(ValueError, match=r"these (can|do): .*softmax|--level layer"):
            contender(*who, 64, SIZES)


def test_decoding_goes_on_from_its_context_and_is_brought_back():
    core = made("linear", "op", True, 40, SIZES)
    found = contender("linear", "op", "decode", True, 40, SIZES)
    found.before()
    first = found.run()
    found.run()
    found.before()
    assert torch.equal(found.run(), first)
    assert core.causal


@pytest.mark.parametrize("name", ["softmax", "linear", "local"])
def test_what_decoding_holds(name):
    sizes = SIZES._replace(options={"local": {"window": 16}})
    short, long = (contender(name, "op", "decode", True, n, sizes).held() for n in (128, 256))
    if name == "softmax":
        assert long == 2 * short == 2 * 4 * (2 * 2 * 256 * 16)
    else:
        assert long == short


def test_uncached_softmax_does_the_whole_pass_for_one_token():
    whole = operations(contender("softmax" + UNCACHED, "op", "decode", True, 256, SIZES).run)
    one = contender("softmax", "op", "decode", True, 256, SIZES)
    one.before()
    assert whole > 100 * operations(one.run)


def test_options_reach_the_mechanism_by_name_and_by_variant():
    sizes = SIZES._replace(options={"local": {"window": 7}, "performer:relu": {"features": 24}})
    assert made("local", "op", True, 64, sizes).window == 7
    assert made("performer:relu", "op", True, 64, sizes).features == 24
    assert made("performer:exp", "op", True, 64, sizes).features != 24
    with pytest.raises(TypeError, match="no option 'windw'; did you mean 'window'"):
        made("local", "op", True, 64, SIZES._replace(options={"local": {"windw": 7}}))


def test_compiled_is_for_those_who_claim_it():
    assert refusal("softmax" + COMPILED, "op", "forward", False) == ""
    assert "these do: softmax" in refusal("linear" + COMPILED, "op", "forward", False)


def test_a_floor_needs_a_formula():
    machine = Limits(1e9, 1e9)
    known = contender("linear", "op", "forward", False, 64, SIZES)
    assert floor(known, machine) == max(known.operations, known.moved) / 1e9
    assert floor(known._replace(operations=0.0), machine) is None


def test_half_precision_is_what_was_asked_for():
    found = contender("linear", "layer", "forward", True, 64, SIZES._replace(dtype=torch.bfloat16))
    assert found.run().dtype == torch.bfloat16


def test_states_count_each_tensor():
    assert state_bytes((torch.zeros(3), [torch.zeros(2, dtype=torch.float64)], 5, None)) == 28


@pytest.mark.skipif(high_water_bytes(lambda: None) is None, reason="only Linux keeps a high-water mark")
def test_the_process_sees_the_peak_that_the_profiler_sees():
    sizes = Sizes(1, 4, 64, torch.float32, "cpu", {})
    run = contender("linear", "op", "train", False, 8192, sizes).run
    run()
    assert high_water_bytes(run) == pytest.approx(peak_bytes(run), rel=0.25)
