"""The copy study: its trials, and each of its verdicts in both directions, from records that are made up."""

import json
import math
import random
from collections import Counter

import pytest

from anyformer.studies import copy, judged
from anyformer.studies._copy_judges import ahead_at, crosses_at, foretold
from anyformer.studies._judging import Span
from anyformer.studies._timing import summed_up

SEEDS = 3
TRIALS = copy.trials("laptop", SEEDS)


def learned(what, seed, loss=0.001, tokens=0.999, **more):
    """Results of a training."""
    jitter = 1 + 0.01 * random.Random(f"{what['trial']} {seed}").random()
    scores = {"loss": loss * jitter, "token_accuracy": tokens, "generated_sequence_accuracy": tokens}
    return {
        "curve": [[100, 2.0], [200, 0.05], [300, 0.01]],
        "diverged": False,
        "final_loss": loss * jitter,
        "final_loss_sum": loss * jitter * 8 * (what["length"] + 1),
        "evaluation": scores,
        "training_evaluation": scores if what["data"] == "fixed" else None,
        **more,
    }


def diverged(what, seed):
    ends = ("final_loss", "final_loss_sum", "evaluation", "training_evaluation")
    return learned(what, seed) | {"diverged": True, **dict.fromkeys(ends)}


def unlearned(what, seed):
    return learned(what, seed, loss=2.3, tokens=0.1)


SECONDS = {  # of a training step
    "softmax": lambda n: 1e-3 + 1e-5 * n + 2e-8 * n**2,
    "linear": lambda n: 1.5e-3 + 1.5e-5 * n,
    "linear, naive": lambda n: 1e-3 + 2e-4 * n,
}
TOKEN = {  # of a token after a context
    "softmax": lambda n: 1e-3 + 1e-6 * n,
    "softmax, nothing cached": lambda n: 1e-3 + 1e-4 * n,
    "linear": lambda n: 1e-3,
}


def clocked(what, noise=0.02, **changed):
    """Results of a timing."""
    drawn = random.Random(0)
    decode = what["level"] == "decode"
    names = list(TOKEN) if decode else list(SECONDS)[: 2 if what["level"] == "model" else 3]
    take = {**(TOKEN if decode else SECONDS), **changed}
    taken = {
        n: {name: [take[name](n) * math.exp(drawn.gauss(0, noise)) for _ in range(9)] for name in names}
        for n in what["lengths"]
    }
    more = {"linear": [34_816] * len(taken), "softmax": [2048 * n for n in taken]}
    return summed_up(names, taken) | ({"bytes": more} if decode else {"left_out": []})


def records(training=learned, timing=clocked, wanted=lambda what: True):
    """Those of the study that are wanted, with results by what a trial is."""
    return [
        {
            "kind": "study",
            "status": "done",
            "what": t.what,
            "seed": t.seed,
            "results": [timing(t.what) if t.alone else training(t.what, t.seed)],
        }
        for t in TRIALS
        if wanted(t.what)
    ]


def verdict(claim, **made):
    (own,) = (one for one in copy.CLAIMS if one.id == claim)
    (row,) = judged([own], records(wanted=own.decided_by, **made), copy.trials)
    return row["verdict"], row["because"]


def linear(results, *, when=lambda what, seed: True):
    """Trainings where linear is another than softmax."""
    return lambda what, seed: (
        results(what, seed) if what["mechanism"] == "linear" and when(what, seed) else learned(what, seed)
    )


def long(what, seed=None):
    return what["steps"] == 10_000


# Trials


def test_the_trials_of_the_laptop():
    parts = Counter((t.what["part"], t.seed) for t in TRIALS)
    assert parts == {("timing", 0): 4, **{("training", seed): 28 for seed in range(SEEDS)}}
    own = [t.what for t in TRIALS if t.seed == 1]
    assert Counter((w["data"], w["mechanism"]) for w in own) == {
        ("fresh", "softmax"): 5,
        ("fresh", "linear"): 5,
        ("fresh", "performer:positive"): 4,
        ("fresh", "performer:relu"): 4,
        ("fixed", "softmax"): 5,
        ("fixed", "linear"): 5,
    }
    assert {w["mechanism"] for w in own if long(w)} == {"softmax", "linear"}
    assert {w["length"] for w in own if long(w) or w["activation"] == "elu1"} == {32}


@pytest.mark.parametrize("preset", copy.PRESETS)
def test_trials_have_names_of_their_own_and_are_json(preset):
    found = copy.trials(preset, 2)
    assert len({t.name for t in found}) == len(found) == len({t.key for t in found})
    assert all(json.loads(json.dumps(t.what)) == t.what for t in found)
    assert {t.what["preset"] for t in found} == {preset}


def test_the_paper_preset_is_the_documents():
    training = [t.what for t in copy.trials("paper", 1) if not t.alone and not long(t.what)]
    assert {w["length"] for w in training} == {8, 16, 32, 64}
    for name, value in {
        "heads": 8,
        "dim": 512,
        "layers": 4,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "steps": 3000,
    }.items():
        assert {w[name] for w in training} == {value}


def test_every_claim_has_its_trials_in_every_preset():
    for preset in copy.PRESETS:
        for claim in copy.CLAIMS:
            own = [t.what for t in copy.trials(preset, 1) if claim.decided_by(t.what)]
            assert own, claim.id
            assert Counter(w["mechanism"] for w in own if w["part"] == "training") in (
                {},
                dict.fromkeys(("softmax", "linear"), sum("mechanism" in w for w in own) // 2),
            )
    assert len({claim.id for claim in copy.CLAIMS}) == len(copy.CLAIMS)


def test_activations_are_compared_at_one_length():
    claim = next(claim for claim in copy.CLAIMS if claim.id == "1e")
    own = [t.what for t in copy.trials("laptop", 1) if claim.decided_by(t.what)]
    assert {(w["mechanism"], w["activation"], w["length"]) for w in own} == {
        (m, a, 32) for m in ("softmax", "linear") for a in ("relu", "elu1")
    }


# Verdicts on learning


def test_both_learn_alike():
    for claim, word in {
        "1a": "refuted",
        "1b": "refuted",
        "1c": "refuted",
        "1d": "reproduced",
        "1e": "reproduced",
    }.items():
        assert verdict(claim)[0] == word, claim


def test_losses_that_end_anywhere_are_no_stable_convergence():
    def wide(what, seed):
        return learned(what, seed, loss={8: 0.0, 16: 0.2, 32: 0.0, 64: 0.13}[what["length"]])

    word, because = verdict("1a", training=linear(wide))
    assert word == "reproduced"
    assert "(3 seeds, length 8, 16, 32, 64)" in because
    narrow = linear(lambda what, seed: learned(what, seed, loss=0.001 * (1 + (what["length"] == 64))))
    assert verdict("1a", training=narrow)[0] == "refuted"
    torn = linear(lambda what, seed: wide(what, seed) if seed == 0 else learned(what, seed))
    assert verdict("1a", training=torn)[0] == "inconclusive"


@pytest.mark.parametrize("claim", ["1b", "1c"])
def test_a_higher_loss_is_found_over_seeds(claim):
    word, because = verdict(claim, training=linear(lambda what, seed: learned(what, seed, loss=0.5)))
    assert word == "reproduced"
    assert "Linear's, in the mean over the lengths, is 0.5" in because
    assert "at step 200 with linear and 200 with softmax" in because
    few = linear(lambda what, seed: learned(what, seed, loss=0.5 * (seed == 0)))
    assert verdict(claim, training=few)[0] == "inconclusive"


def test_a_loss_that_never_falls_is_said_to():
    flat = linear(lambda what, seed: learned(what, seed, curve=[[100, 2.0], [200, 2.0]]))
    assert "at step never with linear and 200 with softmax" in verdict("1c", training=flat)[1]


def test_copying_as_well_needs_many_steps_only():
    slow = linear(lambda what, seed: learned(what, seed, loss=0.5, tokens=0.8), when=lambda what, seed: not long(what))
    assert verdict("1c", training=slow)[0] == "reproduced"
    assert verdict("1d", training=slow)[0] == "reproduced"
    worse = linear(lambda what, seed: learned(what, seed, tokens=0.95), when=long)
    word, because = verdict("1d", training=worse)
    assert word == "refuted"
    assert "Linear's share is -0.049 [-0.049, -0.049] above softmax's" in because


@pytest.mark.parametrize("claim", ["1a", "1b", "1c", "1d", "1e"])
def test_nothing_is_compared_with_a_softmax_that_has_not_learned(claim):
    word, because = verdict(claim, training=unlearned)
    assert word == "inconclusive"
    assert "softmax itself has 90% of the tokens right, with every seed, at 0 of the lengths" in because

    def reversed_(what, seed):
        return learned(what, seed) if what["mechanism"] == "linear" else unlearned(what, seed)

    assert verdict(claim, training=reversed_)[0] == "inconclusive"
    assert verdict(claim, training=diverged)[0] == "inconclusive"


def test_lengths_where_softmax_has_not_learned_are_left_out():
    def hard(what, seed):
        if what["length"] == 64:
            return (
                unlearned(what, seed) if seed == 2 else learned(what, seed, loss=9.0 * (what["mechanism"] != "softmax"))
            )
        return learned(what, seed)

    for claim in ("1a", "1b", "1c"):
        word, because = verdict(claim, training=hard)
        assert word == "refuted"
        assert "length 8, 16, 32, without 64, where softmax itself has not learned" in because
    alone = lambda what, seed: learned(what, seed) if what["length"] == 8 else unlearned(what, seed)  # noqa: E731
    assert verdict("1b", training=alone)[0] == "refuted"
    assert verdict("1a", training=alone) == (
        "inconclusive",
        "There is too little to compare with: softmax itself has 90% of the tokens right, with every seed, at 1 of the "
        "lengths, and 2 would be needed.",
    )


@pytest.mark.parametrize(
    ("claim", "word"), [("1a", "reproduced"), ("1b", "reproduced"), ("1c", "reproduced"), ("1d", "refuted")]
)
def test_divergence_where_softmax_learns_is_evidence_against_linear(claim, word):
    once = linear(diverged, when=lambda what, seed: what["length"] == 32 and seed == 1)
    assert verdict(claim, training=once) == (word, "Linear diverges at length 32 (seed 1), where softmax learns.")


def test_activations_agree_or_not():
    def only(activation, results):
        return linear(results, when=lambda what, seed: what["activation"] == activation)

    def high(what, seed):
        return learned(what, seed, loss=0.5)

    assert verdict("1e", training=linear(high))[0] == "reproduced"  # above with both
    assert verdict("1e", training=only("elu1", high))[0] == "refuted"
    assert verdict("1e", training=only("relu", diverged))[0] == "refuted"
    assert verdict("1e", training=linear(diverged))[0] == "reproduced"
    torn = only("elu1", lambda what, seed: learned(what, seed, loss=0.5 * (seed == 0)))
    assert verdict("1e", training=torn)[0] == "inconclusive"


# Verdicts on time


def timed(**changed):
    return lambda what: clocked(what, **({} if what["level"] == "decode" else changed))


def decoded(**changed):
    return lambda what: clocked(what, **(changed if what["level"] == "decode" else {}))


def test_growth_is_linear_or_not():
    for claim in ("2a", "2b"):
        assert verdict(claim)[0] == "reproduced"
        assert verdict(claim, timing=timed(linear=SECONDS["softmax"]))[0] == "refuted"
        assert verdict(claim, timing=timed(noise=1.0))[0] == "inconclusive"
    assert "Their four times of linear are a constant plus N^0.95" in verdict("2a")[1]


def test_softmax_is_quadratic_at_short_lengths_or_not():
    quadratic = timed(softmax=lambda n: 1e-3 + 1e-5 * n**2)
    word, because = verdict("2c", timing=quadratic)
    assert word == "reproduced"
    assert "Their four times of softmax are a constant plus N^1.4" in because
    assert verdict("2c", timing=timed(softmax=lambda n: 1e-3 + 1e-4 * n))[0] == "refuted"
    assert verdict("2c", timing=timed(noise=1.0))[0] == "inconclusive"


def crossing_at(length):
    """Softmax is quadratic, linear is linear, and they meet there."""
    return timed(softmax=lambda n: 1e-6 * n**2 + 1e-4, linear=lambda n: 1e-6 * length * n + 1e-4)


def test_where_they_cross_decides_both_claims():
    assert [verdict(claim)[0] for claim in ("3a", "3b")] == ["refuted", "reproduced"]
    assert [verdict(claim, timing=crossing_at(3149))[0] for claim in ("3a", "3b")] == ["reproduced", "refuted"]
    assert [verdict(claim, timing=crossing_at(1400))[0] for claim in ("3a", "3b")] == ["refuted", "refuted"]
    never = timed(linear=lambda n: 1.0 * n)
    assert [verdict(claim, timing=never)[0] for claim in ("3a", "3b")] == ["refuted", "refuted"]


@pytest.mark.parametrize(
    ("found", "at_3149", "by_512"),
    [
        ({"kind": "measured", "length": 400, "low": 380, "high": 500}, "refuted", "reproduced"),
        ({"kind": "measured", "length": 400, "low": 256, "high": 512}, "refuted", "reproduced"),
        ({"kind": "measured", "length": 512, "low": 480, "high": 530}, "refuted", "inconclusive"),
        ({"kind": "measured", "length": 3600, "low": 3200, "high": 4000}, "reproduced", "refuted"),
        ({"kind": "from the first length", "length": 8}, "refuted", "reproduced"),
        ({"kind": "none", "up_to": 8192}, "refuted", "refuted"),
        ({"kind": "none", "up_to": 1024}, "inconclusive", "refuted"),
        ({"kind": "none", "up_to": 256}, "inconclusive", "inconclusive"),
        ({"kind": "inconclusive"}, "inconclusive", "inconclusive"),
    ],
)
def test_a_crossing_at_a_length_and_a_lead_from_it_on_are_two_things(found, at_3149, by_512):
    assert (crosses_at(3149, found), ahead_at(512, found)) == (at_3149, by_512)


@pytest.mark.parametrize(
    ("told", "found", "word"),
    [
        ((370, 350, 390), {"kind": "measured", "low": 340, "high": 400}, "reproduced"),
        ((94, 90, 99), {"kind": "measured", "low": 340, "high": 400}, "refuted"),
        ((370, 90, 390), {"kind": "measured", "low": 340, "high": 400}, "inconclusive"),
        ((math.inf, math.inf, math.inf), {"kind": "measured", "low": 340, "high": 400}, "refuted"),
        ((math.inf, 300, math.inf), {"kind": "measured", "low": 340, "high": 400}, "inconclusive"),
        ((94, 90, 99), {"kind": "none", "up_to": 8192}, "refuted"),
        ((9000, 8500, 9900), {"kind": "none", "up_to": 8192}, "inconclusive"),
        ((94, 90, 99), {"kind": "from the first length", "length": 8}, "inconclusive"),
        ((94, 90, 99), {"kind": "inconclusive"}, "inconclusive"),
    ],
)
def test_a_crossing_is_foretold_or_not(told, found, word):
    assert foretold(Span(*told), found) == word


def test_the_extrapolation_is_tried_on_our_own_first_lengths():
    exact = {"softmax": lambda n: 1e-3 + 1e-5 * n**2, "linear": lambda n: 2e-3 + 5e-3 * n}  # what the method assumes
    word, because = verdict("3e", timing=timed(noise=0.001, **exact))
    assert word == "reproduced"
    assert because.startswith("Their four times give 3149 tokens if softmax takes a + c N^2, and 6219 if")
    word, because = verdict("3e")  # softmax has a linear term
    assert word == "refuted"
    assert "for a layer: " in because
    assert "; for a model: " in because

    def cut_short(what):
        return clocked({**what, "lengths": [n for n in what["lengths"] if n < 64 or what["level"] == "decode"]})

    assert verdict("3e", timing=cut_short)[0] == "inconclusive"


def test_softmax_is_faster_at_every_short_length():
    word, because = verdict("3c")
    assert word == "reproduced"
    assert [f" at {n}" in because for n in (8, 16, 32, 64, 128)] == [True] * 4 + [False]
    one = timed(linear=lambda n: SECONDS["linear"](n) * (0.1 if n == 16 else 1))
    assert verdict("3c", timing=one)[0] == "refuted"  # one length that is clear is enough
    level = timed(noise=0.2, linear=lambda n: SECONDS["softmax"](n) * (1 if n == 16 else 3))
    assert verdict("3c", timing=level)[0] == "inconclusive"


def test_their_factors_are_judged_length_by_length():
    factors = {8: 7.9, 16: 12.7, 32: 18.7, 64: 24.2}

    def times(share):
        return timed(linear=lambda n: SECONDS["softmax"](n) * share * factors.get(n, 25))

    word, because = verdict("3d", timing=times(1.0))
    assert word == "reproduced"
    assert "theirs took 7.9 at 8, 12.7 at 16, 18.7 at 32, 24.2 at 64; more than 50%" in because
    assert verdict("3d")[0] == "refuted"
    assert verdict("3d", timing=times(0.5))[0] == "inconclusive"
    assert verdict("3d", timing=timed(linear=lambda n: 9 * SECONDS["softmax"](n)))[0] == "refuted"  # enough at 8 only
    assert "at 64 tokens that form alone would give" in because


def test_decoding_is_constant_in_time_and_memory():
    assert verdict("4a")[0] == "reproduced"
    assert verdict("4a", timing=decoded(linear=TOKEN["softmax"]))[0] == "refuted"
    assert verdict("4a", timing=decoded(noise=0.5))[0] == "inconclusive"

    def heavy(what):
        made = clocked(what)
        return made | {"bytes": made["bytes"] | {"linear": made["bytes"]["softmax"]}} if "bytes" in made else made

    assert verdict("4a", timing=heavy)[0] == "refuted"


def test_decoding_is_compared_over_whole_images():
    word, because = verdict("4b")
    assert word == "refuted"
    # a token of softmax takes (1 + n / 1000) times a token of linear; with nothing cached (1 + n / 10)
    assert "1.4" in because.split(" at 784, ")[0]
    assert "2.5" in because.split(" at 784, ")[1].split(" at 3072")[0]
    assert verdict("4b", timing=decoded(softmax=lambda n: 100.0))[0] == "reproduced"
    uncached = decoded(**{"softmax, nothing cached": lambda n: 100.0})
    assert verdict("4b", timing=uncached)[0] == "refuted"  # the cache decides


def test_an_image_that_was_not_measured_decides_nothing():
    def short(what):
        return clocked({**what, "lengths": [16, 784]} if what["level"] == "decode" else what)

    word, because = verdict("4b", timing=short)
    assert word == "inconclusive"
    assert "3072 tokens decide" in because


def test_half_a_study_names_what_is_missing():
    rows = [r for r in records() if r["seed"] == 0 and r["what"].get("data") != "fixed"]
    found = {row["claim"]: row for row in copy.verdicts(rows)}
    assert found["2a"]["verdict"] == "reproduced"
    assert found["2a"]["records"] == ["timing, layer"]
    assert found["1c"]["verdict"] == "not measured"
    assert found["1c"]["because"].startswith("not finished: fresh, softmax, length 8, 3000 steps (seed 1); ")
    assert found["1a"]["because"].startswith("not finished: fixed, softmax, length 8, 3000 steps (seed 0); ")
    two = [r for r in records() if r["seed"] < 2]
    assert "(2 seeds, " in {row["claim"]: row for row in copy.verdicts(two)}["1c"]["because"]


# Results


@pytest.mark.parametrize("count", [1, 199, 200, 201, 3000])
def test_a_curve_is_thinned_to_means(count):
    found = copy.thinned([(step, float(step)) for step in range(1, count + 1)])
    assert len(found) <= copy.POINTS
    assert found[-1][0] == count
    each = math.ceil(count / copy.POINTS)
    assert found[0] == [each, (1 + each) / 2]


def test_a_training_goes_on_from_its_folder_and_says_what_came_out(tmp_path):
    what = next(t.what for t in copy.trials("smoke", 1) if t.what.get("data") == "fixed")
    whole = copy.run(what, 0, tmp_path / "a")
    assert whole["seconds"] > 0
    assert [len(one["copy"]) for one in whole["samples"]] == [what["length"] + 1] * 4
    assert whole["training_evaluation"].keys() == whole["evaluation"].keys()
    assert whole["curve"][-1][0] == what["steps"]
    again = copy.run(what, 0, tmp_path / "a")  # all steps are done: only the scores are taken anew
    assert again["seconds"] is None
    assert {**again, "seconds": 0, "tokens_per_second": 0} == {**whole, "seconds": 0, "tokens_per_second": 0}


def test_a_training_that_diverges_has_its_curve_and_no_scores(tmp_path, monkeypatch):
    what = next(t.what for t in copy.trials("smoke", 1) if not t.alone) | {"learning_rate": 1e30}
    found = copy.run(what, 0, tmp_path / "a")
    assert found["diverged"]
    assert (found["final_loss"], found["evaluation"], found["samples"]) == (None, None, [])
    assert 1 <= len(found["curve"]) < what["steps"]
    json.dumps(found, allow_nan=False)


def test_the_naive_form_computes_the_same():
    import torch

    from anyformer.mechanisms.kernel.linear import Linear

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 9, 4, dtype=torch.float64).unbind()
    options = {"heads": 2, "head_dim": 4, "causal": True}
    torch.testing.assert_close(copy.Naive(**options).attend(q, k, v), Linear(**options).attend(q, k, v))


def test_the_timing_trials_of_the_smoke_preset_give_what_a_verdict_needs():
    for trial in copy.trials("smoke", 1):
        if trial.alone:
            what = {**trial.what, "lengths": trial.what["lengths"][:2], "budget": 0.1}
            found = copy.run(what, 0, None)
            assert found["lengths"][0] == what["lengths"][0]
            assert {"seconds", "exponent", "crossover"} <= found.keys()
            assert ("bytes" in found) == (what["level"] == "decode")
            json.dumps(found, allow_nan=False)
