"""The judges of the copy study: what its records say of each claim."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean

from anyformer.measure.contenders import UNCACHED
from anyformer.measure.scaling import fit, full_quadratic, old_method
from anyformer.studies import Row, Verdict, Word
from anyformer.studies._judging import (
    Span,
    above,
    crossed,
    drawn,
    each,
    everywhere,
    extrapolated,
    growth,
    over_seeds,
    power,
    ratios,
    rounds_up_to,
    whole,
    within,
)

PAIR = ("softmax", "linear")
NAIVE = "linear, naive"
LAST = 50  # steps whose mean is the final loss

# Verdicts on learning

LEARNED = 0.9  # of the tokens right, where guessing has a tenth; a softmax below that is no measure for others
CLEAR = 0.01  # nats per token, 1 % of the probability of each; or share of the tokens: one in a hundred
CLEAR_SUM = 8.0  # nats per batch, by which softmax's own losses differ in document 002: less is not "much more"
LOW = 0.1  # nats per token, each with a probability of 90 %: a loss on its way down has passed the plateau of guessing

Runs = dict[int, dict[int, dict[str, Row]]]  # length -> seed -> mechanism -> results
Score = Callable[[Row], float]


def final_loss(results: Row) -> float:
    return results["final_loss"]


def final_sum(results: Row) -> float:
    return results["final_loss_sum"]


def fresh_loss(results: Row) -> float:
    return results["evaluation"]["loss"]


def fresh_tokens(results: Row) -> float:
    return results["evaluation"]["token_accuracy"]


def written(results: Row) -> float:
    return results["evaluation"]["generated_sequence_accuracy"]


def until_low(results: Row) -> float:
    return next((step for step, loss in results["curve"] if loss < LOW), math.inf)


def learned(results: Row) -> bool:
    """Whether it is right about the data that it was trained on."""
    scores = results["training_evaluation"] or results["evaluation"]
    return scores is not None and scores["token_accuracy"] >= LEARNED


def comparable(records: Sequence[Row], activation: str = "relu") -> Runs:
    """The lengths where softmax has learned with every seed."""
    found: Runs = {}
    for record in records:
        what = record["what"]
        if what["activation"] == activation:
            by_seed = found.setdefault(what["length"], {})
            by_seed.setdefault(record["seed"], {})[what["mechanism"]] = record["results"][0]
    return {n: by_seed for n, by_seed in found.items() if all(learned(one["softmax"]) for one in by_seed.values())}


def incomparable(found: Runs, against: Word, least: int = 1) -> Verdict | None:
    """The verdict where there are no two numbers to compare."""
    if len(found) < least:
        return "inconclusive", (
            f"There is too little to compare with: softmax itself has {LEARNED:.0%} of the tokens right, with every "
            f"seed, at {len(found)} of the lengths, and {least} would be needed."
        )
    if lost := diverged(found):
        return against, f"Linear diverges at {lost}, where softmax learns."
    return None


def diverged(found: Runs) -> str:
    return ", ".join(
        f"length {n} (seed {seed})"
        for n, by_seed in found.items()
        for seed, one in by_seed.items()
        if one["linear"]["diverged"]
    )


def gap(found: Runs, score: Score, reduce: Callable[[Sequence[float]], float] = mean) -> Span:
    """How much more linear's score is than softmax's, over seeds; both are reduced over the same lengths."""

    def of(mechanism: str, seed: int) -> float:
        return reduce([score(by_seed[seed][mechanism]) for by_seed in found.values()])

    return over_seeds([of("linear", seed) - of("softmax", seed) for seed in next(iter(found.values()))])


def spread(values: Sequence[float]) -> float:
    return max(values) - min(values)


def ends(found: Runs, score: Score, form: str = ".3g") -> str:
    """From the least to the most of each mechanism."""
    said = []
    for mechanism in PAIR[::-1]:
        values = [score(one[mechanism]) for by_seed in found.values() for one in by_seed.values()]
        low, high = ("never" if v == math.inf else format(v, form) for v in (min(values), max(values)))
        said.append((low if low == high else f"{low} to {high}") + f" with {mechanism}")
    return " and ".join(said)


def at(found: Runs, records: Sequence[Row]) -> str:
    """Over what a comparison is."""
    seeds = len({r["seed"] for r in records})
    left = {r["what"]["length"] for r in records} - set(found)
    without = f", without {listed(left)}, where softmax itself has not learned" if left else ""
    return f"({seeds} seeds, length {listed(found)}{without})"


def listed(lengths: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(lengths)))


def judge_spread(records: Sequence[Row]) -> Verdict:
    found = comparable(records)
    if verdict := incomparable(found, "reproduced", least=2):
        return verdict
    wider = gap(found, final_sum, spread)
    return above(wider, CLEAR_SUM), (
        f"The last {LAST} steps have a loss, summed over a batch, of {ends(found, final_sum)} {at(found, records)}. "
        f"Linear's range over the lengths is {wider} wider; more than {CLEAR_SUM:g}, which is softmax's own range in "
        f"the document, counts. Of the tokens of fresh sequences {ends(found, fresh_tokens, '.1%')} are right."
    )


def judge_loss(score: Score, records: Sequence[Row]) -> Verdict:
    found = comparable(records)
    if verdict := incomparable(found, "reproduced"):
        return verdict
    higher = gap(found, score)
    by_length = {n: gap({n: by_seed}, score) for n, by_seed in found.items()}
    return above(higher, CLEAR), (
        f"The losses per token are {ends(found, score)} {at(found, records)}. Linear's, in the mean over the lengths, "
        f"is {higher} above softmax's ({each(by_length)}); more than {CLEAR} counts. The loss first falls below {LOW} "
        f"at step {ends(found, until_low, '.0f')}."
    )


def judge_same(records: Sequence[Row]) -> Verdict:
    found = comparable(records)
    if verdict := incomparable(found, "refuted"):
        return verdict
    better = gap(found, fresh_tokens)
    return within(better, -CLEAR, math.inf), (
        f"{ends(found, fresh_tokens, '.1%')} of the tokens of fresh sequences are right, at losses of "
        f"{ends(found, fresh_loss)} {at(found, records)}. Linear's share is {better} above softmax's; down to "
        f"{-CLEAR} counts as the same. By itself {ends(found, written, '.1%')} of the sequences are written without a "
        "mistake."
    )


def judge_activation(records: Sequence[Row]) -> Verdict:
    """The same side of CLEAR with both activations."""
    sides: list[Word] = []
    said = []
    for activation in ("relu", "elu1"):
        found = comparable(records, activation)
        if verdict := incomparable(found, "reproduced"):
            side, why = verdict
            said.append(f"With {activation}: {why}")
        else:
            higher = gap(found, final_loss)
            side = above(higher, CLEAR)
            said.append(f"With {activation} linear's final loss is {higher} above softmax's {at(found, records)}.")
        sides.append(side)
    word: Word = "inconclusive" if "inconclusive" in sides else "reproduced" if len(set(sides)) == 1 else "refuted"
    return word, f"{' '.join(said)} More than {CLEAR} counts as above."


# Verdicts on time

SHORT = (8, 16, 32, 64)  # the lengths of document 002
THEIRS = {"softmax": (221, 236, 287, 416), "linear": (1738, 3004, 5373, 10_071)}  # seconds of 3,000 steps there
LINEAR = (0.9, 1.1)  # exponents that count as linear: each doubling takes 1.9 to 2.1 times as long
QUADRATIC = (1.8, 2.2)  # and as quadratic, by the same tenth
SLACK = 1.3  # of a length where they cross: the document calls 2^11.6 2^12, so it does not mean more
MUCH = 0.5  # of their factor counts as theirs, since the machine and the language are others
CONSTANT = 1.25  # times as long counts as the same, over 16 times the length: the machine's speed drifts by as much
IMAGES = (784, 3072)  # tokens: of MNIST and of CIFAR-10


def level(records: Sequence[Row], name: str) -> Row:
    return next(r["results"][0] for r in records if r["what"]["level"] == name)


def theirs(name: str) -> str:
    found = fit(SHORT, [[seconds] for seconds in THEIRS[name]])
    return f"N^{found.median:.2f}" if found else ""


def judge_growth(records: Sequence[Row]) -> Verdict:
    found = records[0]["results"][0]
    ours = found["exponent"]["linear"]
    return within(Span(ours["median"], ours["low"], ours["high"]), *LINEAR) if ours else "inconclusive", (
        f"From {found['lengths'][0]} to {found['lengths'][-1]} tokens a training step takes a constant plus "
        f"{power(ours)} with linear and {power(found['exponent']['softmax'])} with softmax; {LINEAR[0]} to {LINEAR[1]} "
        f"counts as linear. Their four times of linear are a constant plus {theirs('linear')}."
    )


def judge_square(records: Sequence[Row]) -> Verdict:
    found = {}
    for name in ("short", "model"):
        taken = rounds_up_to(level(records, name), "softmax", SHORT[-1])
        found[name] = fit(list(taken), list(taken.values()))
    ours = found["short"]
    said = {name: power(one and one._asdict()) for name, one in found.items()}
    return within(Span(*ours), *QUADRATIC) if ours else "inconclusive", (
        f"Their four times of softmax are a constant plus {theirs('softmax')}. Up to {SHORT[-1]} tokens our training "
        f"step takes a constant plus {said['short']} (layer, which decides) and {said['model']} (model); "
        f"{QUADRATIC[0]} to {QUADRATIC[1]} counts as quadratic."
    )


def judge_crossing(judge: Callable[[Row], Word], records: Sequence[Row]) -> Verdict:
    found = {name: level(records, name)["crossover"]["linear"] for name in ("layer", "model")}
    said = "; ".join(f"{crossed(one)} ({name})" for name, one in found.items())
    return judge(found["layer"]), f"Linear is faster {said}. The layer decides: its sizes are nearest to the claim's."


def crosses_at(claimed: float, found: Row) -> Word:
    """Whether they cross near the length that is claimed."""
    if found["kind"] == "measured":
        return "reproduced" if found["low"] / SLACK <= claimed <= found["high"] * SLACK else "refuted"
    if found["kind"] == "none":
        return "refuted" if claimed * SLACK < found["up_to"] else "inconclusive"
    return "refuted" if found["kind"] == "from the first length" else "inconclusive"


def ahead_at(claimed: float, found: Row) -> Word:
    """Whether linear is ahead at the length that is claimed and from there on."""
    if found["kind"] == "measured":
        return "reproduced" if found["high"] <= claimed else "refuted" if found["low"] >= claimed else "inconclusive"
    if found["kind"] == "none":
        return "refuted" if claimed <= found["up_to"] else "inconclusive"
    return "reproduced" if found["kind"] == "from the first length" else "inconclusive"


def judge_short(records: Sequence[Row]) -> Verdict:
    times = ratios(level(records, "model"), "linear", "softmax")
    words: list[Word] = [above(times[n], 1.0) if n in times else "inconclusive" for n in SHORT]
    return everywhere(words), (
        f"A training step of the model takes linear so many times as long as softmax: {each(up_to_short(times))}. "
        "Each length must be above 1."
    )


def up_to_short(times: Mapping[int, Span]) -> dict[int, Span]:
    return {n: one for n, one in times.items() if n in SHORT}


def judge_cost(records: Sequence[Row]) -> Verdict:
    found = level(records, "short")
    ours, naive = (up_to_short(ratios(found, name, "softmax")) for name in ("linear", NAIVE))
    factors = {n: b / a for n, a, b in zip(SHORT, THEIRS["softmax"], THEIRS["linear"], strict=True)}
    words: list[Word] = [above(ours[n], MUCH * factors[n]) if n in ours else "inconclusive" for n in SHORT]
    said = (
        f"A training step of a layer takes linear so many times as long as softmax: {each(ours)}; theirs took "
        + ", ".join(f"{factor:.1f} at {n}" for n, factor in factors.items())
        + f"; more than {MUCH:.0%} of that counts at each length."
    )
    if naive:
        n = max(naive)
        said += (
            f" When every position's sum is held at once, it takes {each(naive)}: at {n} tokens that form alone would "
            f"give {naive[n].middle:.3g} of their {factors[n]:.3g}."
        )
    return everywhere(words), said


def judge_extrapolation(records: Sequence[Row]) -> Verdict:
    """What their method says of our first four lengths, beside where we measured that linear overtakes."""
    words: dict[str, Word] = {}
    said = []
    for name in ("layer", "model"):
        results = level(records, name)
        crossing, few = results["crossover"]["linear"], rounds_up_to(results, "softmax", SHORT[-1])
        if tuple(few) != SHORT:
            words[name] = "inconclusive"
            said.append(f"{name}: not all of {listed(SHORT)} were measured")
            continue
        told = extrapolated(results, "linear", "softmax", SHORT[-1])
        words[name] = foretold(told, crossing)
        both = [drawn(rounds_up_to(results, one, SHORT[-1]))[0].tolist() for one in PAIR]
        said.append(
            f"{name}: {told if told.middle < math.inf else tokens(None)} by their method and "
            f"{tokens(full_quadratic(SHORT, *both))} by the other, and measured {crossed(crossing)}"
        )
    old, full = (method(SHORT, THEIRS["softmax"], THEIRS["linear"]) for method in (old_method, full_quadratic))
    return words["layer"], (
        f"Their four times give {tokens(old)} tokens if softmax takes a + c N^2, and {tokens(full)} if it may have a "
        f"linear term too. Our first four lengths give, for a {'; for a '.join(said)}. The layer decides: its sizes "
        f"are nearest to the claim's; a factor of {SLACK} is allowed."
    )


def foretold(told: Span, found: Row) -> Word:
    """Whether a crossing lies where it was foretold; infinity foretells that there is none."""
    if found["kind"] == "none":
        return "refuted" if told.high * SLACK < found["up_to"] else "inconclusive"
    if found["kind"] != "measured":
        return "inconclusive"
    apart = told.high * SLACK < found["low"] or told.low > found["high"] * SLACK
    near = found["low"] / SLACK <= told.low and told.high <= found["high"] * SLACK
    return "refuted" if apart else "reproduced" if near else "inconclusive"


def tokens(length: float | None) -> str:
    return "nowhere" if length is None else f"{length:.0f}"


def judge_constant(records: Sequence[Row]) -> Verdict:
    found = level(records, "decode")
    first, last, held = found["lengths"][0], found["lengths"][-1], found["bytes"]
    ours, theirs = (growth(found, name) for name in PAIR[::-1])
    same = held["linear"][0] == held["linear"][-1]
    return above(Span(-ours.middle, -ours.high, -ours.low), -CONSTANT) if same else "refuted", (
        f"After {last} tokens another takes {ours} times as long as after {first} with linear, and {theirs} times with "
        f"softmax and a KV cache; below {CONSTANT} counts as constant. A layer's state has {held['linear'][0]:,} and "
        f"{held['linear'][-1]:,} bytes with linear, {held['softmax'][0]:,} and {held['softmax'][-1]:,} with softmax."
    )


def judge_decoding(records: Sequence[Row]) -> Verdict:
    found = level(records, "decode")
    lengths = [n for n in found["lengths"] if n in IMAGES] or found["lengths"][-1:]
    cached, uncached = (
        {n: whole(found, name, "linear", n) for n in lengths} for name in ("softmax", "softmax" + UNCACHED)
    )
    return above(cached[lengths[-1]], 4000.0) if lengths[-1] == IMAGES[-1] else "inconclusive", (
        "One sequence at a time, token by token, softmax takes so many times as long as linear to write one of "
        f"{' or '.join(map(str, lengths))} tokens: {each(cached)} with a KV cache, which decides as the best exact "
        f"way, and {each(uncached)} with nothing cached. {IMAGES[-1]} tokens decide."
    )
