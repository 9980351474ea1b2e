"""Does linear attention learn to copy as well as softmax does, and from which length on is it faster?

Document 002 replicates the copy task of Katharopoulos et al. 2020 (Transformers are RNNs, arXiv:2006.16236) at lengths
8 to 64 and 3,000 steps. Here all of it runs again, with several seeds, and is measured where their memory ended.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.catalog import build
from anyformer.contract import AttentionLayer
from anyformer.measure.contenders import UNCACHED, Sizes, contender
from anyformer.measure.crossing import REFINED, ROUNDS, crossover, next_length
from anyformer.measure.scaling import fit
from anyformer.measure.time import Interval, interval, ratio, rounds
from anyformer.mechanisms.kernel.linear import Linear, phi
from anyformer.models.transformer import Seq2Seq
from anyformer.studies import Claim, Row, Trial, Verdict, Word, judged
from anyformer.tasks.copy import EVALUATION, SEPARATOR, VOCABULARY, CopySeq2Seq, lost, right
from anyformer.training.loop import METRICS, Diverged, cut, train

MECHANISMS = ("softmax", "linear", "performer:positive", "performer:relu")
PAIR = ("softmax", "linear")
NAIVE = "linear, naive"
FIXED = 8  # batches of the fixed set
EVALUATED = 128  # fresh sequences that a trained model copies
MOST = 60  # rounds of decoding
POINTS = 200  # of a curve
LAST = 50  # steps whose mean is the final loss
NAIVE_BYTES = 64 << 20  # of running sums at most; more would cost those who take turns with it


class Preset(NamedTuple):
    heads: int
    head_dim: int
    layers: int  # of the encoder, and of the decoder
    features: int  # of Performer
    steps: int
    long: int  # steps of the two long trials
    lengths: tuple[int, ...]
    layer: tuple[int, int]  # heads and head_dim of the layer that is timed
    layer_lengths: tuple[int, ...]
    model_lengths: tuple[int, ...]
    decode: tuple[int, int]  # heads and head_dim
    decode_lengths: tuple[int, ...]
    budget: float  # seconds that a timing trial takes at most


def doubling(low: int, high: int) -> tuple[int, ...]:
    return tuple(low * 2**n for n in range(int(math.log2(high // low)) + 1))


DECODED = (196, 392, 784, 1536, 3072)  # tokens; an image of MNIST has 784 and one of CIFAR-10 has 3,072
PRESETS = {
    "smoke": Preset(
        2, 8, 1, 16, 30, 60, (4, 8), (2, 8), doubling(8, 64), doubling(8, 64), (2, 8), (16, 32, 64, 128), 3
    ),
    "laptop": Preset(
        4,
        16,
        2,
        64,
        3000,
        10_000,
        (8, 16, 32, 64),
        (8, 64),
        doubling(8, 8192),
        doubling(8, 4096),
        (8, 32),
        DECODED,
        180,
    ),
    "paper": Preset(
        8,
        64,
        4,
        256,
        3000,
        10_000,
        (8, 16, 32, 64),
        (8, 64),
        doubling(8, 8192),
        doubling(8, 4096),
        (8, 32),
        DECODED,
        600,
    ),
}


# The trials


def trials(preset: str, seeds: int) -> list[Trial]:
    """Those that measure time once; then all of the others for one seed after another."""
    own = [*timings(preset), *trainings(preset)]
    return [
        Trial({"study": "copy", "preset": preset, **what}, seed)
        for seed in range(seeds)
        for what in own
        if seed == 0 or what["part"] == "training"
    ]


def timings(preset: str) -> list[Row]:
    sizes = PRESETS[preset]

    def timing(level: str, share: float, batch_size: int, heads: int, head_dim: int, lengths: Sequence[int]) -> Row:
        dims = {"heads": heads, "head_dim": head_dim, "dim": heads * head_dim, "batch_size": batch_size}
        own = {"trial": f"timing, {level}", "part": "timing", "level": level, "budget": share * sizes.budget}
        return {**own, **dims, "lengths": list(lengths)}

    return [
        timing("short", 1 / 6, 8, *sizes.layer, [n for n in sizes.layer_lengths if n <= 64]),
        timing("layer", 1, 1, *sizes.layer, sizes.layer_lengths),
        timing("model", 1, 8, sizes.heads, sizes.head_dim, sizes.model_lengths) | {"layers": sizes.layers},
        timing("decode", 1 / 3, 1, *sizes.decode, sizes.decode_lengths),
    ]


def trainings(preset: str) -> list[Row]:
    sizes = PRESETS[preset]
    middle = sizes.lengths[len(sizes.lengths) // 2]
    cases = [("fresh", m, n, sizes.steps, "relu") for m, n in product(MECHANISMS, sizes.lengths)]
    cases += [("fixed", m, n, sizes.steps, "relu") for m, n in product(PAIR, sizes.lengths)]
    cases += [("fresh", m, middle, sizes.long, "relu") for m in PAIR]
    cases += [("fixed", m, middle, sizes.steps, "elu1") for m in PAIR]
    return [
        {
            "trial": f"{data}, {mechanism}, length {length}, {steps} steps" + ", elu1" * (activation == "elu1"),
            "part": "training",
            "mechanism": mechanism,
            "length": length,
            "data": data,
            "steps": steps,
            "activation": activation,
            "dim": sizes.heads * sizes.head_dim,
            "heads": sizes.heads,
            "layers": sizes.layers,
            "features": sizes.features if mechanism.startswith("performer") else None,
            "batch_size": 8,
            "learning_rate": 1e-3,
        }
        for data, mechanism, length, steps, activation in cases
    ]


def run(what: Row, seed: int, folder: Path) -> Row:
    if what["part"] == "training":
        return trained(what, seed, folder)
    torch.manual_seed(seed)
    return {"layer": layers, "short": layers, "model": models, "decode": decoding}[what["level"]](what)


def seconds(what: Row) -> float:
    """A timing trial takes its budget; of a training, a few steps are measured."""
    if what["part"] == "timing":
        return float(what["budget"])
    key = what["mechanism"], what["length"], what["dim"], what["heads"], what["layers"], what["features"]
    if key not in STEP:
        step = stepping(what)
        STEP[key] = median(rounds({"": step}, seconds=0.0, at_least=3)[""])
    return float(what["steps"]) * STEP[key]


STEP: dict[tuple[Any, ...], float] = {}  # seconds of one step, once measured


# Training


def model_of(what: Row) -> Seq2Seq:
    features = {} if what.get("features") is None else {"features": what["features"]}
    place = partial(build, what["mechanism"], heads=what["heads"], **features)
    return Seq2Seq(
        VOCABULARY,
        VOCABULARY,
        encoder=place,
        decoder=place,
        cross=place,
        dim=what["dim"],
        encoder_layers=what["layers"],
        decoder_layers=what["layers"],
        activation=what.get("activation", "relu"),
    )


def adam(what: Row) -> Callable[..., torch.optim.Optimizer]:
    return partial(torch.optim.Adam, lr=what.get("learning_rate", 1e-3))


def trained(what: Row, seed: int, folder: Path) -> Row:
    torch.manual_seed(seed)
    model = model_of(what)
    cycle = FIXED if what["data"] == "fixed" else None
    task = CopySeq2Seq(length=what["length"], batch_size=what["batch_size"], cycle=cycle, seed=seed)
    resumed, began, diverged = folder.exists(), perf_counter(), False
    try:
        lines = train(
            model,
            task,
            optimizer=adam(what),
            steps=what["steps"],
            seed=seed,
            checkpoint_every=max(1, what["steps"] // 20),
            folder=folder,
            resume=True,
            quiet=True,
        )
    except Diverged:
        lines, diverged = cut(folder / METRICS, (folder / METRICS).stat().st_size), True
    taken = None if resumed else perf_counter() - began  # the part before a stop was not timed
    found: Row = {
        "curve": thinned([(line["step"], line["loss"]) for line in lines]),
        "diverged": diverged,
        "seconds": taken,
        "tokens_per_second": None if taken is None else sum(line["count"] for line in lines) / taken,
        "final_loss": None,
        "final_loss_sum": None,
        "evaluation": None,
        "training_evaluation": None,
        "samples": [],
    }
    if diverged:
        return found
    last = lines[-LAST:]
    fresh = CopySeq2Seq(length=what["length"], batch_size=EVALUATED, seed=seed).draw(EVALUATION, 0)
    scores, copies = scored(model.eval(), task, fresh)
    found |= {
        "final_loss": mean(line["loss"] for line in last),
        "final_loss_sum": mean(line["loss_sum"] for line in last),
        "evaluation": scores,
        "samples": [
            {"source": source, "copy": copy}
            for source, copy in zip(fresh["source"][:4, 1:-1].tolist(), copies[:4].tolist(), strict=True)
        ],
    }
    if cycle is not None:
        batches = [task.batch(step) for step in range(cycle)]
        whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        found["training_evaluation"], _ = scored(model, task, whole)
    return found


@torch.no_grad()
def scored(model: Seq2Seq, task: CopySeq2Seq, batch: dict[str, Tensor]) -> tuple[Row, Tensor]:
    """How well it predicts with the true tokens before, and writes by itself; and what it writes."""
    logits, target = task.logits(model, batch), batch["target"]
    written = model.generate(batch["source"], begin=SEPARATOR, length=target.shape[1])
    tokens, sequences = right(logits.argmax(-1), target)
    own_tokens, own_sequences = right(written, target)
    return {
        "loss": lost(logits, target).item() / target.numel(),
        "token_accuracy": tokens / target.numel(),
        "sequence_accuracy": sequences / len(target),
        "generated_token_accuracy": own_tokens / target.numel(),
        "generated_sequence_accuracy": own_sequences / len(target),
    }, written


def thinned(curve: Sequence[tuple[int, float]]) -> list[list[float]]:
    """At most POINTS points, each the mean of the steps up to it."""
    each = math.ceil(len(curve) / POINTS) if curve else 1
    parts = [curve[n : n + each] for n in range(0, len(curve), each)]
    return [[part[-1][0], mean(loss for _, loss in part)] for part in parts]


# Time


class Naive(Linear):
    """The equations one by one as array operations: every position's sum of phi(k) v^T is held at once."""

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        q, k = phi(q), phi(k)
        s_BHNDE = (k[..., :, None] * v[..., None, :]).cumsum(2)
        over = (q[..., :, None] * s_BHNDE).sum(-2)
        return over / (q * k.cumsum(2)).sum(-1, keepdim=True)


Make = Callable[[str, int], Callable[[], object] | None]  # a contender at a length, ready to be called


def layers(what: Row) -> Row:
    def make(name: str, length: int) -> Callable[[], object] | None:
        heads, head_dim, dim = what["heads"], what["head_dim"], what["dim"]
        if name == NAIVE:
            if 4 * what["batch_size"] * length * heads * head_dim**2 > NAIVE_BYTES:
                return None
            layer: nn.Module = AttentionLayer(Naive(heads=heads, head_dim=head_dim, causal=True), dim=dim)
        else:
            layer = build(name, dim=dim, heads=heads, causal=True)
        x = torch.randn(what["batch_size"], length, dim, requires_grad=True)
        upstream, wanted = torch.randn_like(x), [x, *layer.parameters()]
        return lambda: torch.autograd.grad(layer(x), wanted, upstream)

    return timed(what, (*PAIR, NAIVE), make)


def models(what: Row) -> Row:
    return timed(what, PAIR, lambda name, length: stepping({**what, "mechanism": name, "length": length}))


def stepping(what: Row) -> Callable[[], object]:
    """Training steps on one batch."""
    model, task = model_of(what), CopySeq2Seq(length=what["length"], batch_size=what["batch_size"])
    optimizer, batch = adam(what)(model.parameters()), task.batch(0)

    def step() -> None:
        optimizer.zero_grad()
        loss, count, _ = task.loss(model, batch)
        (loss / count).backward()
        optimizer.step()

    return step


def decoding(what: Row) -> Row:
    """One token after a context; nothing cached means the whole pass for every token."""
    sizes = Sizes(what["batch_size"], what["heads"], what["head_dim"], torch.float32, "cpu", {})
    names = ("softmax", "softmax" + UNCACHED, "linear")
    taken: dict[int, dict[str, list[float]]] = {}
    held: dict[str, list[int | None]] = {name: [] for name in names}
    for length in what["lengths"]:
        made = {name: contender(name, "layer", "decode", True, length, sizes) for name in names}
        taken[length] = rounds(
            {name: one.run for name, one in made.items()},
            seconds=what["budget"] / len(what["lengths"]),
            at_least=ROUNDS,
            at_most=MOST,
            before={name: one.before for name, one in made.items() if one.before},
            most_calls=max(8, length // 16),
        )
        for name, one in made.items():
            held[name].append(None if one.before is None else one.held())
    return summed_up(names, taken) | {"bytes": held}


def timed(what: Row, names: Sequence[str], make: Make) -> Row:
    """Rounds at every length that fits into the budget, and closer and closer around where linear overtakes."""
    began, taken = perf_counter(), dict[int, dict[str, list[float]]]()
    left_out: list[int] = []
    share = what["budget"] / (4 * len(what["lengths"]))  # of a length; the long ones take more
    while True:
        ratios = {n: [a / b for a, b in zip(t["softmax"], t["linear"], strict=True)] for n, t in taken.items()}
        length = next_length(ratios, set(what["lengths"]) - set(left_out))
        if length is None:
            break
        below = max((n for n in taken if n < length), default=None)
        at_least = ROUNDS if length in what["lengths"] else REFINED
        if below is not None:
            each = sum(median(t) for t in taken[below].values()) * (length / below) ** 2
            if each * (at_least + 3) > what["budget"] - (perf_counter() - began):
                if length not in what["lengths"]:
                    break
                left_out += [n for n in what["lengths"] if n >= length]
                continue
        runs = {name: step for name in names if (step := make(name, length)) is not None}
        taken[length] = rounds(runs, seconds=share, at_least=at_least, at_most=2 * at_least)
    return summed_up(names, dict(sorted(taken.items()))) | {"left_out": left_out}


def summed_up(names: Sequence[str], taken: Mapping[int, Mapping[str, list[float]]]) -> Row:
    def exponent(name: str) -> Row | None:
        own = {n: t[name] for n, t in taken.items() if name in t}
        found = fit(list(own), list(own.values()))
        return found._asdict() if found else None

    def crossing(name: str) -> Row:
        both = {n: t for n, t in taken.items() if name in t}
        return crossover(
            {n: [a / b for a, b in zip(t["softmax"], t[name], strict=True)] for n, t in both.items()}
        )._asdict()

    return {
        "lengths": list(taken),
        "seconds": {name: [t.get(name) for t in taken.values()] for name in names},
        "exponent": {name: exponent(name) for name in names},
        "crossover": {name: crossing(name) for name in names if name != "softmax"},
    }


# Verdicts

T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 97.5 % of Student's t, 1 to 9 degrees of freedom
CLEAR = 0.01  # nats per token, or share of tokens, that make a difference
CLEAR_SUM = 1.0  # nats per batch
CONSTANT = 1.25  # times as long is still the same, over a factor of 16 in length
SLACK = 1.25  # of a length that is said to be where they cross
THEIRS = {8: (221, 1738), 16: (236, 3004), 32: (287, 5373), 64: (416, 10_071)}  # seconds of softmax and of linear


def over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its 95 % interval, by Student's t, since seeds are few; one seed has none."""
    if len(values) < 2:
        return mean(values), -math.inf, math.inf
    half = T95[min(len(values) - 2, len(T95) - 1)] * stdev(values) / math.sqrt(len(values))
    return mean(values), mean(values) - half, mean(values) + half


def above(low: float, high: float, threshold: float) -> Word:
    """Whether something lies above the threshold."""
    return "reproduced" if low > threshold else "refuted" if high < threshold else "inconclusive"


def within(low: float, high: float, least: float, most: float) -> Word:
    return (
        "reproduced" if least <= low and high <= most else "refuted" if high < least or low > most else "inconclusive"
    )


def said(found: tuple[float, float, float], seeds: int) -> str:
    if seeds < 2:
        return f"{found[0]:.3g} (one seed, so no interval)"
    return f"{spanned(*found)} ({seeds} seeds)"


Score = Callable[[Row], float]


def scores(
    records: Sequence[Row], mechanism: str, score: Score, activation: str = "relu"
) -> dict[int, dict[int, float]]:
    """seed -> length -> score, of one mechanism."""
    found: dict[int, dict[int, float]] = {}
    for record in records:
        what = record["what"]
        if (what["mechanism"], what["activation"]) == (mechanism, activation):
            found.setdefault(record["seed"], {})[what["length"]] = score(record["results"][0])
    return found


def paired(
    records: Sequence[Row], score: Score, reduce: Callable[[Sequence[float]], float] = mean, activation: str = "relu"
) -> list[float]:
    """For each seed, how much more linear's score is than softmax's; both are reduced over the same lengths."""
    ours, theirs = (scores(records, mechanism, score, activation) for mechanism in ("linear", "softmax"))
    lengths = {frozenset(by_length) for by_length in (*ours.values(), *theirs.values())}
    longest = max(lengths, key=len, default=frozenset())
    return [
        reduce(list(ours[seed].values())) - reduce(list(theirs[seed].values()))
        for seed in sorted(ours.keys() & theirs.keys())
        if ours[seed].keys() == theirs[seed].keys() == longest
    ]


def spread(values: Sequence[float]) -> float:
    return max(values) - min(values)


def final_loss(results: Row) -> float:
    return results["final_loss"]


def final_sum(results: Row) -> float:
    return results["final_loss_sum"]


def fresh_loss(results: Row) -> float:
    return results["evaluation"]["loss"]


def fresh_tokens(results: Row) -> float:
    return results["evaluation"]["token_accuracy"]


def ends(records: Sequence[Row], score: Score, percent: bool = False) -> str:
    """From the least to the most of each mechanism."""
    found = []
    for mechanism in PAIR:
        values = [v for by_length in scores(records, mechanism, score).values() for v in by_length.values()]
        low, high = (f"{v:.1%}" if percent else f"{v:.3g}" for v in (min(values), max(values)))
        found.append(f"{low} to {high} with {mechanism}")
    return " and ".join(found)


def converged(judge: Callable[[Sequence[Row]], Verdict | None]) -> Callable[[Sequence[Row]], Verdict | None]:
    """A judge of trainings that all came to an end."""

    def judged(records: Sequence[Row]) -> Verdict | None:
        lost = [f"{r['what']['trial']} (seed {r['seed']})" for r in records if r["results"][0]["diverged"]]
        return ("inconclusive", f"diverged: {', '.join(lost)}") if lost else judge(records)

    return judged


def judge_spread(records: Sequence[Row]) -> Verdict | None:
    wider = paired(records, final_sum, spread)
    if not wider:
        return None
    found = over_seeds(wider)
    return above(*found[1:], CLEAR_SUM), (
        f"The last {LAST} steps have a loss, summed over a batch, of {ends(records, final_sum)}. Linear's range over "
        f"the lengths is {said(found, len(wider))} wider; above {CLEAR_SUM:g} counts. Of the tokens of fresh sequences "
        f"{ends(records, fresh_tokens, True)} are right."
    )


def judge_loss(score: Score, records: Sequence[Row]) -> Verdict | None:
    higher = paired(records, score)
    if not higher:
        return None
    found = over_seeds(higher)
    return above(*found[1:], CLEAR), (
        f"The losses per token are {ends(records, score)}. Linear's, in the mean over the lengths, is "
        f"{said(found, len(higher))} above softmax's; above {CLEAR} counts."
    )


def judge_same(records: Sequence[Row]) -> Verdict | None:
    better = paired(records, fresh_tokens)
    if not better:
        return None
    found = over_seeds(better)
    return within(*found[1:], -CLEAR, 1.0), (
        f"{ends(records, fresh_tokens, True)} of the tokens of fresh sequences are right, at losses of "
        f"{ends(records, fresh_loss)}. Linear's share less softmax's is {said(found, len(better))}; no more than "
        f"{CLEAR} below counts as the same."
    )


def judge_activation(records: Sequence[Row]) -> Verdict | None:
    """The same side of CLEAR with both activations."""
    middle = {r["what"]["length"] for r in records if r["what"]["activation"] == "elu1"}
    alike = [r for r in records if r["what"]["length"] in middle]
    gaps = {name: paired(alike, final_loss, activation=name) for name in ("relu", "elu1")}
    if not all(gaps.values()):
        return None
    sides = {above(*over_seeds(gap)[1:], CLEAR) for gap in gaps.values()}
    verdict: Word = "inconclusive" if "inconclusive" in sides else "reproduced" if len(sides) == 1 else "refuted"
    return verdict, "Linear's final loss less softmax's is " + " and ".join(
        f"{said(over_seeds(gap), len(gap))} with {name}" for name, gap in gaps.items()
    ) + f"; above {CLEAR} counts."


# Verdicts on time


def level(records: Sequence[Row], name: str) -> Row | None:
    return next((r["results"][0] for r in records if r["what"]["level"] == name), None)


def slower(results: Row, name: str, than: str = "softmax") -> dict[int, Interval]:
    """At each length, how many times as long it takes."""
    rows = zip(results["lengths"], results["seconds"][name], results["seconds"][than], strict=True)
    return {n: ratio(ours, theirs) for n, ours, theirs in rows if ours and theirs}


def times(ratios: Mapping[int, Interval]) -> str:
    return ", ".join(f"{spanned(*one)} at {n}" for n, one in ratios.items())


def spanned(middle: float, low: float, high: float) -> str:
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


def power(found: Row | None) -> str:
    return f"N^{found['median']:.2f} [{found['low']:.2f}, {found['high']:.2f}]" if found else "too few lengths to tell"


def judge_growth(records: Sequence[Row]) -> Verdict | None:
    if not records or not (found := records[0]["results"][0])["exponent"]["linear"]:
        return None
    ours = found["exponent"]["linear"]
    return within(ours["low"], ours["high"], 0.9, 1.1), (
        f"From {found['lengths'][0]} to {found['lengths'][-1]} tokens a training step takes a constant plus "
        f"{power(ours)} with linear and {power(found['exponent']['softmax'])} with softmax; 0.9 to 1.1 counts as "
        "linear."
    )


def judge_crossing(claimed: float, records: Sequence[Row]) -> Verdict | None:
    found = {name: results["crossover"]["linear"] for name in ("layer", "model") if (results := level(records, name))}
    if "layer" not in found:
        return None
    text = "; ".join(f"{crossed(one)} ({name})" for name, one in found.items())
    return agrees(
        found["layer"], claimed
    ), f"Linear is faster {text}. The layer decides: it has the sizes of the claim."


def agrees(found: Row, claimed: float) -> Word:
    if found["kind"] == "measured":
        return "reproduced" if found["low"] / SLACK <= claimed <= found["high"] * SLACK else "refuted"
    if found["kind"] == "none":
        return "refuted" if claimed * SLACK < found["up_to"] else "inconclusive"
    return "refuted" if found["kind"] == "from the first length" else "inconclusive"


def crossed(found: Row) -> str:
    if found["kind"] == "measured":
        return f"from {found['length']:.0f} tokens on [{found['low']:.0f}, {found['high']:.0f}]"
    if found["kind"] == "none":
        return f"nowhere up to {found['up_to']} tokens"
    return {"from the first length": "from the first length on"}.get(found["kind"], "from where the rounds do not tell")


def judge_short(records: Sequence[Row]) -> Verdict | None:
    model = level(records, "model")
    if model is None:
        return None
    short = {n: one for n, one in slower(model, "linear").items() if n <= 64}
    verdict = above(min(one.low for one in short.values()), max(one.high for one in short.values()), 1.0)
    return verdict, f"A training step of the model takes linear so many times as long as softmax: {times(short)}."


def judge_cost(records: Sequence[Row]) -> Verdict | None:
    short = level(records, "short")
    if short is None:
        return None
    ours, naive = slower(short, "linear"), slower(short, NAIVE)
    verdict = above(min(one.low for one in ours.values()), max(one.high for one in ours.values()), 7.9)
    theirs = {n: linear / softmax for n, (softmax, linear) in THEIRS.items()}
    longest = max(theirs.keys() & naive.keys(), default=None)
    text = (
        f"A training step of a layer takes linear so many times as long as softmax: {times(ours)}; theirs took "
        + ", ".join(f"{factor:.1f} at {n}" for n, factor in theirs.items())
        + f". When every position's sum is held at once, it takes {times(naive)}."
    )
    if longest is not None:
        found, claimed = naive[longest].median, theirs[longest]
        text += f" At {longest} tokens that form alone would give {found:.3g} of their {claimed:.3g}."
    return verdict, text


def growth(seconds: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """How many times as long the last length takes as the first, at least and at most."""
    first, last = interval(seconds[0]), interval(seconds[-1])
    return last.median / first.median, last.low / first.high, last.high / first.low


def judge_constant(records: Sequence[Row]) -> Verdict | None:
    decode = level(records, "decode")
    if decode is None:
        return None
    first, last, held = decode["lengths"][0], decode["lengths"][-1], decode["bytes"]
    ours, theirs = (growth(decode["seconds"][name]) for name in PAIR[::-1])
    same = held["linear"][0] == held["linear"][-1]
    return above(-ours[2], -ours[1], -CONSTANT) if same else "refuted", (
        f"After {last} tokens another takes {spanned(*ours)} times as long as after {first} with linear, and "
        f"{spanned(*theirs)} times with softmax and a KV cache; below {CONSTANT} counts as constant. A layer's state "
        f"has {held['linear'][0]:,} and {held['linear'][-1]:,} bytes with linear, {held['softmax'][0]:,} and "
        f"{held['softmax'][-1]:,} with softmax."
    )


def judge_decoding(records: Sequence[Row]) -> Verdict | None:
    decode = level(records, "decode")
    if decode is None:
        return None
    lengths = [n for n in decode["lengths"] if n in (784, 3072)] or decode["lengths"][-1:]
    cached, uncached = (slower(decode, name, "linear") for name in ("softmax", "softmax" + UNCACHED))
    last = cached[lengths[-1]]
    return above(last.low, last.high, 4000.0), (
        f"A token takes softmax so many times as long as linear: {times({n: cached[n] for n in lengths})} with a KV "
        f"cache; and {times({n: uncached[n] for n in lengths})} with nothing cached, as the figure has it."
    )


def trains(data: str, long: bool = False) -> Callable[[Row], bool]:
    """Whether a trial is one of softmax and linear on such data."""

    def is_so(what: Row) -> bool:
        return (what["part"], what.get("mechanism") in PAIR, what.get("data")) == ("training", True, data) and (
            what["steps"] == PRESETS[what["preset"]].long
        ) == long

    return is_so


def measures(*levels: str) -> Callable[[Row], bool]:
    return lambda what: what.get("level") in levels


CLAIMS = (
    Claim(
        "1a",
        "002",
        "On a fixed set of 8 batches, linear attention does not converge as stably as softmax: where its losses end "
        "depends much more on the run.",
        "losses of 0 to 70 against 10 to 18 after 3,000 steps",
        trains("fixed"),
        converged(judge_spread),
    ),
    Claim(
        "1b",
        "002",
        "On that set, linear's loss is still above softmax's when they stop.",
        "a higher loss after 3,000 steps",
        trains("fixed"),
        converged(partial(judge_loss, final_loss)),
    ),
    Claim(
        "1c",
        "002",
        "On fresh data too, linear learns more slowly: its loss is above softmax's after the same steps.",
        "a higher loss after 3,000 steps, read off the plot of the paper",
        trains("fresh"),
        converged(partial(judge_loss, fresh_loss)),
    ),
    Claim(
        "1d",
        "002, of the paper",
        "With enough steps linear attention copies as well as softmax.",
        "the same after 10,000 steps",
        trains("fresh", long=True),
        converged(judge_same),
    ),
    Claim(
        "1e",
        "002",
        "elu + 1 in the place of relu in the feed-forward layers leaves the comparison as it is.",
        "swapped in, so that conditions do not differ",
        trains("fixed"),
        converged(judge_activation),
    ),
    Claim(
        "2a",
        "002",
        "The time of a layer of linear attention grows linearly with the length.",
        "1738, 3004, 5373 and 10071 s for 8, 16, 32 and 64: each doubling about doubles it",
        measures("layer"),
        judge_growth,
    ),
    Claim(
        "2b",
        "002",
        "So does the time of a whole model.",
        "the same four times",
        measures("model"),
        judge_growth,
    ),
    Claim(
        "3a",
        "002",
        "Linear attention is worth its while only for long sequences.",
        "from 3149 on, by regression from 8 to 64 (called 2^12; it is 2^11.6)",
        measures("layer", "model"),
        partial(judge_crossing, 3149),
    ),
    Claim(
        "3b",
        "002, of the paper",
        "Linear attention is faster from moderate lengths on.",
        "from 512 on",
        measures("layer", "model"),
        partial(judge_crossing, 512),
    ),
    Claim(
        "3c",
        "002",
        "Up to 64 tokens softmax is faster.",
        "221, 236, 287 and 416 s against 1738, 3004, 5373 and 10071 s",
        measures("model"),
        judge_short,
    ),
    Claim(
        "3d",
        "002",
        "At equal lengths up to 64 linear attention takes many times as long as softmax.",
        "7.9 to 24 times",
        measures("short"),
        judge_cost,
    ),
    Claim(
        "4a",
        "002, of the paper",
        "Decoding with linear attention takes constant time and memory for each token.",
        "as an RNN does",
        measures("decode"),
        judge_constant,
    ),
    Claim(
        "4b",
        "002, of the paper",
        "It generates images thousands of times faster than softmax.",
        "more than 4,000 times, for the 3,072 tokens of CIFAR-10",
        measures("decode"),
        judge_decoding,
    ),
)


def verdicts(records: Sequence[Row]) -> list[Row]:
    return judged(CLAIMS, records)
