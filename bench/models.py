"""Training throughput of our sequence-to-sequence model against torch's own, in interleaved rounds.

python bench/models.py [--lengths N ...] [--seconds 20] [--record FILE] [--json]

Both have the same sizes and biases, and tokens in and logits out. A step is a forward pass, the loss and its gradients.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import anyformer as af
from anyformer.measure.load import disturbed, others, reading
from anyformer.measure.time import interval, ratio, rounds
from anyformer.models.transformer import Seq2Seq
from anyformer.parts.positions import sinusoids
from anyformer.records import recording

DIM, HEADS, LAYERS, VOCABULARY = 256, 8, 2, 32
LENGTHS = (128, 512, 2048, 8192)
TOKENS = 1024  # in a batch at least
HALF = ", bfloat16"  # autocast, after a mechanism's name
ENTRANTS = ("softmax", "linear", "softmax" + HALF, "linear" + HALF)
THEIRS = "torch.nn.Transformer"
RECORD = Path(__file__).parent.parent / "records" / "bench_models.jsonl"

Step = Callable[[], None]


class Theirs(nn.Module):
    """torch's Transformer between the embeddings that ours has."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, DIM), nn.Embedding(VOCABULARY, DIM)
        self.body = nn.Transformer(DIM, HEADS, LAYERS, LAYERS, 4 * DIM, 0.0, "relu", batch_first=True, norm_first=True)
        self.output = nn.Linear(DIM, VOCABULARY, bias=False)
        self.register_buffer("places", sinusoids(torch.arange(length)[None], DIM, torch.float32))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, source_BM: Tensor, target_BN: Tensor) -> Tensor:
        x, y = (e(t) * DIM**0.5 + self.places for e, t in ((self.source, source_BM), (self.target, target_BN)))
        return self.output(self.body(x, y, tgt_mask=self.mask, tgt_is_causal=True))


def ours(mechanism: str) -> Seq2Seq:
    place = partial(af.build, mechanism, heads=HEADS, bias=True)
    return Seq2Seq(
        VOCABULARY,
        VOCABULARY,
        encoder=place,
        decoder=place,
        cross=place,
        dim=DIM,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
    )


def step(model: nn.Module, source: Tensor, target: Tensor, answer: Tensor, *, half: bool) -> Step:
    def run() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = cross_entropy(model(source, target).flatten(0, 1), answer.flatten())
        loss.backward()

    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="N")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the rounds of each length (default 20)")
    parser.add_argument("--record", type=Path, default=RECORD, help="where to append")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    args = parser.parse_args(argv)
    what = {"lengths": list(args.lengths), "seconds": args.seconds, "dim": DIM, "heads": HEADS, "layers": LAYERS}
    what |= {"threads": torch.get_num_threads(), "dtype": "float32"}
    try:
        with recording(args.record, "bench models", what, seed=0) as record:
            for length in args.lengths:
                print(f"{length} tokens", file=sys.stderr, flush=True)
                measure(length, args.seconds, record)
    except KeyboardInterrupt:
        print(f"interrupted: {len(record['results'])} rows are kept", file=sys.stderr)
        return 130
    if args.json:
        print(json.dumps(record["results"], indent=1))
    for row in [] if args.json else record["results"]:
        said = ", ".join(
            f"{name} {r['median']:.2f} ({r['low']:.2f} to {r['high']:.2f})" for name, r in row["speed"].items()
        )
        print(f"{row['length']} tokens, batch {row['batch']}: times as fast as {THEIRS}: {said}")
    return 0


def measure(length: int, seconds: float, record: dict[str, Any]) -> None:
    torch.manual_seed(0)
    batch = max(1, TOKENS // length)
    source, target, answer = torch.randint(VOCABULARY, (3, batch, length))
    models: dict[str, nn.Module] = {THEIRS: Theirs(length), **{n: ours(n.removesuffix(HALF)) for n in ENTRANTS}}
    steps = {name: step(m, source, target, answer, half=name.endswith(HALF)) for name, m in models.items()}
    before = reading()
    taken = rounds(steps, seconds=seconds)
    record["repeats"][str(length)] = taken
    record["results"].append(
        {
            "length": length,
            "batch": batch,
            "speed": {name: ratio(taken[THEIRS], taken[name])._asdict() for name in ENTRANTS},
            "tokens_per_second": {
                name: interval([batch * length / t for t in values])._asdict() for name, values in taken.items()
            },
            "disturbed": disturbed(others(before, reading()), torch.get_num_threads()),
        }
    )


if __name__ == "__main__":
    sys.exit(main())
