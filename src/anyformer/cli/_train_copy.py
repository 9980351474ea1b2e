"""`anyformer train copy`: a sequence-to-sequence model that copies."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from anyformer.models.transformer import Seq2Seq
    from anyformer.tasks import Batch
    from anyformer.tasks.copy import CopySeq2Seq


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--mixer", required=True, metavar="NAME", help="a mechanism, wherever no other is named")
    for place in ("encoder", "decoder", "cross"):
        add(f"--{place}", metavar="NAME", help=f"a mechanism for {place} attention")
    add("--dim", type=int, default=64, help="of the model (default 64)")
    add("--heads", type=int, default=4, help="default 4")
    add("--layers", type=int, default=2, help="of the encoder, and of the decoder (default 2)")
    add("--activation", default="relu", help="of the feed-forward layers: relu (default), gelu or elu1")
    add("--length", type=int, default=32, help="symbols of a sequence (default 32)")
    add("--data", choices=("fresh", "fixed"), default="fresh", help="new batches (default), or 8 that take turns")


def build(args: argparse.Namespace) -> tuple["Seq2Seq", "CopySeq2Seq"]:
    from anyformer.contract import require_positive
    from anyformer.models.transformer import Seq2Seq
    from anyformer.studies.copy import FIXED
    from anyformer.tasks.copy import VOCABULARY, CopySeq2Seq

    require_positive(length=args.length)
    model = Seq2Seq(
        VOCABULARY,
        VOCABULARY,
        encoder=args.encoder or args.mixer,
        decoder=args.decoder or args.mixer,
        cross=args.cross or args.mixer,
        dim=args.dim,
        encoder_layers=args.layers,
        decoder_layers=args.layers,
        heads=args.heads,
        max_length=args.length + 2,
        activation=args.activation,
    )
    task = CopySeq2Seq(
        length=args.length,
        batch_size=args.batch_size,
        cycle=FIXED if args.data == "fixed" else None,
        seed=args.seed,
        generate=generate if streams(model) else None,
    )
    return model, task


def streams(model: "Seq2Seq") -> bool:
    """Whether it can write by itself."""
    import torch

    try:
        model.start(torch.zeros(1, 3, dtype=torch.long))
    except ValueError:
        return False
    return True


def generate(model: "nn.Module", given: "Batch", count: int) -> "Tensor":
    from anyformer.models.transformer import Seq2Seq
    from anyformer.tasks.copy import SEPARATOR

    assert isinstance(model, Seq2Seq)
    return model.generate(given["source"], begin=SEPARATOR, length=count)
