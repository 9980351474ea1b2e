"""Studies as data: which there are, what counts as finished, and when a claim is judged at all."""

import pytest
from unit.studies import tiny

from anyformer import studies
from anyformer.studies import Claim, finished, judged


def record(trial, status="done", **more):
    return {
        "kind": "study",
        "status": status,
        "what": trial.what,
        "seed": trial.seed,
        "results": [{"from": trial.name}],
        **more,
    }


def told(records, claim=tiny.CLAIMS[0]):
    (row,) = judged([claim], records, tiny.trials)
    return row["verdict"], row["because"]


def test_a_study_is_found_by_its_file():
    assert studies.names()["copy"].startswith("Does linear attention learn to copy")
    assert not any(name.startswith("_") for name in studies.names())
    with pytest.raises(ValueError, match="there is no study 'cpoy'; did you mean 'copy'"):
        studies.study("cpoy")


def test_the_newest_finished_record_of_a_trial_counts():
    first, second, *_ = tiny.trials("quick", 1)
    old, new = record(first, number=1), record(first, number=2)
    failed, cancelled = record(second, "failed"), record(second, "cancelled")
    assert finished([old, failed, new, cancelled]) == [new]
    assert finished([new, old]) == [old]  # the file's order is that of time
    elsewhere = record(tiny.trials("slow", 1)[0])
    assert finished([new, elsewhere]) == [new, elsewhere]


def test_a_claim_needs_all_its_trials_of_two_seeds():
    everything = [record(trial) for trial in tiny.trials("quick", 3)]
    training = [r for r in everything if r["what"]["part"] == "training"]
    assert told([]) == ("not measured", "none of its trials has finished")
    assert told([r for r in everything if r["seed"] == 0]) == (
        "not measured",
        "not finished: count, a (seed 1); count, b (seed 1)",
    )
    assert told(training[:3]) == ("not measured", "not finished: count, b (seed 1)")
    assert told(training[:4]) == ("reproduced", "4 ended")
    assert told(training[:5]) == ("reproduced", "4 ended")  # half a seed more does not count
    assert told(training) == ("reproduced", "6 ended")
    assert told([*training[:3], {**training[3], "status": "failed"}])[0] == "not measured"


def test_a_claim_whose_trials_have_one_seed_needs_only_that():
    once = Claim("2", "000", "", "", lambda what: what["part"] == "timing", lambda rows: ("refuted", str(len(rows))))
    training, timing = tiny.trials("quick", 1)[0], tiny.trials("quick", 1)[2]
    assert told([record(timing)], once) == ("refuted", "1")
    assert told([record(training)], once) == ("not measured", "not finished: timing, c (seed 0)")


def test_much_that_is_missing_is_counted():
    claim = tiny.CLAIMS[0]._replace(decided_by=lambda what: True)
    _, because = told([record(tiny.trials("quick", 1)[0])], claim)
    assert because == "not finished: count, b (seed 0); timing, c (seed 0); count, a (seed 1) and 1 more"


def test_records_with_other_parameters_decide_nothing():
    rows = [record(trial) for trial in tiny.trials("quick", 2)]
    for row in rows:
        row["what"] = {**row["what"], "steps": 4}
    assert told(rows)[0] == "not measured"


def test_presets_are_judged_one_at_a_time():
    with pytest.raises(ValueError, match="judge one at a time"):
        told([record(tiny.trials("quick", 1)[0]), record(tiny.trials("slow", 1)[0])])


def test_a_verdict_names_the_trials_that_decide_it():
    (row,) = judged(tiny.CLAIMS, [record(trial) for trial in tiny.trials("quick", 2)], tiny.trials)
    assert row == {
        "claim": "1",
        "document": "000",
        "says": "Counting ends.",
        "claimed": "always",
        "verdict": "reproduced",
        "because": "4 ended",
        "records": ["count, a", "count, b"],
    }
