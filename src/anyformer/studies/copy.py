"""Does linear attention learn to copy as well as softmax does, and from which length on is it faster?

Document 002 replicates the copy task of Katharopoulos et al. 2020 (Transformers are RNNs, arXiv:2006.16236) at lengths
8 to 64 and 3,000 steps. Here all of it runs again, with several seeds, and is measured where their memory ended.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.catalog import build
from anyformer.contract import AttentionLayer
from anyformer.measure.contenders import UNCACHED, Sizes, contender
from anyformer.measure.crossing import ROUNDS
from anyformer.measure.time import rounds
from anyformer.mechanisms.kernel.linear import Linear, phi
from anyformer.models.transformer import Seq2Seq
from anyformer.studies import Claim, Row, Trial, judged
from anyformer.studies._copy_judges import (
    LAST,
    NAIVE,
    PAIR,
    ahead_at,
    crosses_at,
    final_loss,
    fresh_loss,
    judge_activation,
    judge_constant,
    judge_cost,
    judge_crossing,
    judge_decoding,
    judge_extrapolation,
    judge_growth,
    judge_loss,
    judge_same,
    judge_short,
    judge_spread,
    judge_square,
)
from anyformer.studies._timing import summed_up, timed
from anyformer.tasks.copy import EVALUATION, SEPARATOR, VOCABULARY, CopySeq2Seq, lost, right
from anyformer.training.loop import METRICS, Diverged, cut, train

MECHANISMS = ("softmax", "linear", "performer:positive", "performer:relu")
FIXED = 8  # batches of the fixed set
EVALUATED = 128  # fresh sequences that a trained model copies
MOST = 60  # rounds of decoding
POINTS = 200  # of a curve
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
    cases = [("fresh", m, n, sizes.steps, "relu") for m, n in product(MECHANISMS, sizes.lengths)]
    cases += [("fixed", m, n, sizes.steps, "relu") for m, n in product(PAIR, sizes.lengths)]
    cases += [("fresh", m, middle(sizes), sizes.long, "relu") for m in PAIR]
    cases += [("fixed", m, middle(sizes), sizes.steps, "elu1") for m in PAIR]
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


def middle(sizes: Preset) -> int:
    return sizes.lengths[len(sizes.lengths) // 2]


def run(what: Row, seed: int, folder: Path) -> Row:
    if what["part"] == "training":
        return trained(what, seed, folder)
    torch.manual_seed(seed)
    return {"layer": layers, "short": layers, "model": models, "decode": decoding}[what["level"]](what)


def seconds(what: Row) -> tuple[float, str]:
    if what["part"] == "timing":
        return float(what["budget"]), "at most"
    key = what["mechanism"], what["length"], what["dim"], what["heads"], what["layers"], what["features"]
    if key not in STEP:
        step = stepping(what)
        STEP[key] = median(rounds({"": step}, seconds=0.0, at_least=3)[""])
    return float(what["steps"]) * STEP[key], "from a few steps measured now"


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

    return timed((*PAIR, NAIVE), make, what["lengths"], what["budget"])


def models(what: Row) -> Row:
    def make(name: str, length: int) -> Callable[[], object]:
        return stepping({**what, "mechanism": name, "length": length})

    return timed(PAIR, make, what["lengths"], what["budget"])


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


# Claims


def trains(data: str, long: bool = False, activation: str = "relu") -> Callable[[Row], bool]:
    """Whether a trial is one of softmax and linear on such data."""

    def is_so(what: Row) -> bool:
        kind = what["part"], what.get("data"), what.get("activation"), what.get("mechanism") in PAIR
        return kind == ("training", data, activation, True) and (what["steps"] == PRESETS[what["preset"]].long) == long

    return is_so


def compares_activations(what: Row) -> bool:
    """At the one length where both are trained."""
    both = trains("fixed")(what) or trains("fixed", activation="elu1")(what)
    return both and what["length"] == middle(PRESETS[what["preset"]])


def measures(*levels: str) -> Callable[[Row], bool]:
    return lambda what: what.get("level") in levels


CLAIMS = (
    Claim(
        "1a",
        "002",
        "On a fixed set of 8 batches, linear attention does not converge as stably as softmax: where its losses end "
        "differs much more from length to length.",
        "losses of 0 to 70 against 10 to 18 after 3,000 steps",
        trains("fixed"),
        judge_spread,
    ),
    Claim(
        "1b",
        "002",
        "On that set, linear's loss is still above softmax's when they stop.",
        "a higher loss after 3,000 steps",
        trains("fixed"),
        partial(judge_loss, final_loss),
    ),
    Claim(
        "1c",
        "002",
        "On fresh data too, linear learns more slowly: its loss is above softmax's after the same steps.",
        "a higher loss after 3,000 steps, read off the plot of the paper",
        trains("fresh"),
        partial(judge_loss, fresh_loss),
    ),
    Claim(
        "1d",
        "002, of the paper",
        "With enough steps linear attention copies as well as softmax.",
        "the same after 10,000 steps",
        trains("fresh", long=True),
        judge_same,
    ),
    Claim(
        "1e",
        "002",
        "elu + 1 in the place of relu in the feed-forward layers leaves the comparison as it is.",
        "swapped in, so that conditions do not differ",
        compares_activations,
        judge_activation,
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
        "2c",
        "002",
        "From 8 to 64 tokens softmax shows that its time is quadratic.",
        "221, 236, 287 and 416 s: signs of quadratic complexity",
        measures("short", "model"),
        judge_square,
    ),
    Claim(
        "3a",
        "002",
        "Linear attention is worth its while only for long sequences.",
        "from 3149 on (called 2^12; it is 2^11.6)",
        measures("layer", "model"),
        partial(judge_crossing, partial(crosses_at, 3149)),
    ),
    Claim(
        "3b",
        "002, of the paper",
        "Linear attention is faster from moderate lengths on.",
        "from 512 on",
        measures("layer", "model"),
        partial(judge_crossing, partial(ahead_at, 512)),
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
        "7.9, 12.7, 18.7 and 24.2 times",
        measures("short"),
        judge_cost,
    ),
    Claim(
        "3e",
        "002",
        "A regression on the times at 8 to 64 tokens tells from where on linear is faster.",
        "3149, where a quadratic and a line through four points each meet",
        measures("layer", "model"),
        judge_extrapolation,
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
    return judged(CLAIMS, records, trials)
