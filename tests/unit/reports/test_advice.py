"""Advice from records: who is able, who gains, who fits, and when to keep softmax."""

import pytest

from anyformer.card import mechanisms
from anyformer.reports.advice import able, at, gain, ranked, sentence, within


def interval(median, width=0.1):
    return {"median": median, "low": median - width, "high": median + width}


def row(name, ratios, mode="forward", causal=False, sizes=None, status="measured"):
    """A series: length -> ratio."""
    lengths = sorted(ratios)
    mine = sizes or dict.fromkeys(lengths, 1.0)
    return {
        "mechanism": name,
        "against": "softmax",
        "mode": mode,
        "level": "op",
        "causal": causal,
        "lengths": lengths,
        "ratios": [interval(ratios[n]) for n in lengths],
        "status": [status] * len(lengths),
        "values": {
            "mechanism": [interval(mine[n]) for n in lengths],
            "against": [interval(mine[n] * ratios[n]) for n in lengths],
        },
        "crossover": {"kind": "none"},
    }


def record(*rows):
    return {"results": [{"limits": {}}, *rows]}


ASKED = {"length": 1024, "causal": False, "mode": "forward", "against": "softmax"}


def test_the_greatest_gain_comes_first_and_softmax_before_what_does_not_gain():
    found = ranked(
        [record(row("linear", {1024: 3.0}), row("local", {1024: 5.0}), row("linformer", {1024: 0.6}))],
        ["softmax", "linear", "local", "linformer", "performer:relu"],
        **ASKED,
    )
    assert [r["mechanism"] for r in found] == ["local", "linear", "softmax", "linformer", "performer:relu"]
    assert found[0]["gain"]["median"] == 5.0
    assert found[-1]["gain"] is None
    assert sentence(found, "softmax").startswith("take local: 5.00x [4.90, 5.10] as fast as softmax. ")


def test_a_gain_that_is_not_certain_is_none():
    found = ranked([record(row("linear", {1024: 1.05}))], ["softmax", "linear"], **ASKED)
    assert [r["mechanism"] for r in found] == ["softmax", "linear"]
    assert sentence(found, "softmax") == "keep softmax"


def test_the_newest_record_counts_and_other_orders_and_modes_do_not():
    records = [
        record(row("linear", {1024: 9.0})),
        record(row("linear", {1024: 2.0})),
        record(row("linear", {1024: 7.0}, causal=True), row("linear", {1024: 8.0}, mode="train")),
    ]
    (best, _) = ranked(records, ["softmax", "linear"], **ASKED)
    assert best["gain"]["median"] == 2.0


def test_between_two_lengths_the_wider_interval_counts():
    found = gain(row("linear", {512: 1.0, 1024: 4.0}), 724)
    assert found["median"] == pytest.approx(2.0, rel=0.01)
    assert (found["low"], found["high"]) == (0.9, 4.1)
    assert found["measured_at"] == [512, 1024]
    assert gain(row("linear", {512: 1.0, 4096: 4.0}), 724) is None
    assert gain(row("linear", {512: 1.0}), 724) is None
    assert gain(row("linear", {724: 1.0}, status="inconclusive"), 724) is None


def test_memory_leaves_out_what_does_not_fit_and_what_nobody_measured():
    rows = [
        row("linear", {1024: 3.0}),
        row("local", {1024: 4.0}),
        row("linear", {1024: 2.0}, mode="forward memory", sizes={1024: 50 * 2**20}),
    ]
    found = ranked([record(*rows)], ["softmax", "linear", "local"], **ASKED)
    fits, out = within(found, 80 * 2**20)
    assert [r["mechanism"] for r in fits] == ["linear"]
    assert out == {"local": "its memory was not measured", "softmax": "it needs 100.0 MiB"}
    assert within(found, None) == (found, {})
    assert sentence([], "softmax").startswith("nothing that was measured fits")


def test_memory_at_a_length_is_that_of_the_next_longer_one():
    series = row("linear", {512: 1.0, 1024: 2.0}, sizes={512: 5.0, 1024: 10.0})
    assert at(series, "mechanism", 600) == 10.0
    assert at(series, "mechanism", 2000) is None


def test_who_is_able():
    names = ["softmax", "linear", "linformer", "lambda_layer"]
    assert not any(able(names, causal=False, decode=False, exact=False).values())
    assert able(names, causal=True, decode=False, exact=False)["linformer"] == "it cannot be causal"
    assert able(names, causal=True, decode=True, exact=False)["lambda_layer"] == "it does not stream"
    assert [n for n, why in able(names, causal=False, decode=False, exact=True).items() if not why] == ["softmax"]


@pytest.mark.parametrize("name", mechanisms())
def test_every_card_names_its_price_in_a_sentence(name):
    price = mechanisms()[name].price
    assert 30 < len(price) < 160
    assert price.endswith(".")
