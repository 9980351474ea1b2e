"""The README's crossover table."""

from anyformer.reports.crossings import NONE, agreement, newest, summary

MACHINE = {"processor": "one", "cores": 2, "memory_gib": 8, "system": "Linux", "architecture": "x"}
WHAT = {"against": "softmax", "lengths": [128, 4096], "batch": 1, "heads": 4, "head_dim": 64, "dtype": "float32"}


def row(mechanism, mode, causal, kind="measured", length=300.0, low=280.0, high=330.0, level="op", against="softmax"):
    if kind != "measured":
        low = high = None
    found = {"kind": kind, "length": length if kind != "none" else None, "low": low, "high": high, "up_to": 4096}
    return {
        "mechanism": mechanism,
        "against": against,
        "mode": mode,
        "level": level,
        "causal": causal,
        "crossover": found,
    }


def record(*rows, **changes):
    return {
        "kind": "crossover",
        "status": "done",
        "what": WHAT,
        "machine": MACHINE,
        "versions": {"torch": "2"},
        "started": "2026-01-01",
        "commit": "abcdef0123456789",
        "dirty": False,
        "results": list(rows),
        **changes,
    }


def test_a_line_for_each_mechanism_and_a_column_for_each_mode_and_order():
    text = summary(
        record(
            row("linear", "forward", False),
            row("linear", "train", True, "none"),
            row("lambda_layer", "forward", False, "from the first length", 128.0, level="layer"),
            row("linear", "train", True, length=1.0, against="softmax, nothing cached"),
        ),
        None,
    )
    assert "| mechanism | forward, full | train, causal |" in text
    assert "| linear | 300 (280 to 330) | not up to 4096 |" in text
    assert "| lambda_layer (layer) | from 128, the first measured | \N{EN DASH} |" in text
    assert "commit abcdef012345" in text


def test_two_runs_agree_when_their_intervals_meet():
    one = record(row("linear", "forward", False), row("local", "forward", False, "none"))
    near = record(
        row("linear", "forward", False, length=350, low=320, high=400), row("local", "forward", False, "none")
    )
    far = record(row("linear", "forward", False, length=500, low=450, high=550), row("local", "forward", False))
    assert agreement(one, near).endswith("in 2 of the 2 cells that both decide.")
    said = agreement(one, far)
    assert "in 0 of the 2 cells that both decide; apart are linear, forward, full: 300 (280 to 330) and 500" in said


def test_the_newest_run_and_the_one_alike_before_it():
    first, second, other = record(started="1"), record(started="2"), record(started="3", what={**WHAT, "heads": 8})
    unfinished = record(started="4", status="cancelled")
    assert newest([first, second, unfinished]) == (second, first)
    assert newest([first, other]) == (other, None)
    assert newest([unfinished]) == (None, None)
    assert summary(None, None) == NONE


def test_what_one_run_cannot_tell_is_neither_agreement_nor_the_opposite():
    one = record(row("linear", "forward", False), row("local", "forward", False, "inconclusive"))
    said = agreement(one, record(row("linear", "forward", False), row("local", "forward", False)))
    assert said.endswith("in 1 of the 1 cells that both decide. 1 more is too noisy in one of them.")


def test_a_crossing_beyond_where_the_other_run_ended_is_no_contradiction():
    short = row("linear", "forward", False, "none")
    short["crossover"]["up_to"] = 256
    assert agreement(record(short), record(row("linear", "forward", False))).endswith(
        "1 of the 1 cells that both decide."
    )
    short["crossover"]["up_to"] = 1024
    assert "in 0 of the 1 cells" in agreement(record(short), record(row("linear", "forward", False)))
