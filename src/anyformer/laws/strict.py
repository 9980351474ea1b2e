"""Law 9: what is unknown or cannot be done is refused, with a message that helps; nothing is ignored."""

from typing import Any

import torch

from anyformer.laws.evidence import paddings, raises
from anyformer.laws.subject import Subject

REFUSED = (TypeError, ValueError)


def claimed(subject: Subject) -> bool:
    return True


def check(subject: Subject) -> None:
    card, x = subject.card, subject.tokens(2, 12)
    causal = subject.orders[0]
    layer = subject.layer(causal)
    raises(lambda: layer(x, surely_unknown=1), (TypeError,), "an unknown argument to forward")
    if not card.cross:
        raises(lambda: layer(x, subject.tokens(2, 12, seed=2)), REFUSED, "a context, which the card does not claim")
    if not card.padding:
        raises(lambda: layer(x, keep=paddings(12)["right"]), REFUSED, "a keep mask, which the card does not claim")
    if subject.catalogued:
        options_are_known(subject)
        wrong_inputs(subject, layer, x)
        if card.stream == "none":
            streaming = subject.layer(subject.orders[-1])
            raises(lambda: streaming.start(batch=2), (ValueError,), "start, which the card does not claim")


def options_are_known(subject: Subject) -> None:
    kind = type(getattr(subject.layer(subject.orders[0]), "core", subject.layer(subject.orders[0])))
    raises(lambda: subject.make(surely_unknown=1), (TypeError,), "build with an unknown option", ["surely_unknown"])
    own = {"heads": 2, "head_dim": 8} if subject.card.slot == "attention" else {"dim": subject.dim}
    raises(lambda: kind(**own, surely_unknown=1), (TypeError,), "the class with an unknown option", ["surely_unknown"])
    if subject.card.causal == "no":
        raises(
            lambda: subject.make(causal=True), (ValueError,), "causal=True, which the card does not claim", ["causal"]
        )
    if subject.card.causal == "only":
        raises(lambda: subject.make(causal=False), (ValueError,), "causal=False, which the card excludes", ["causal"])
    raises(lambda: subject.make(causal="yes"), REFUSED, "causal='yes'", ["causal"])


def wrong_inputs(subject: Subject, layer: Any, x: torch.Tensor) -> None:
    raises(lambda: layer(x[0]), (ValueError,), "tokens without a batch", ["shape"])
    raises(lambda: layer(x[..., :-1]), (ValueError,), "tokens of another width", ["shape"])
    raises(lambda: layer(x[:, :0]), (ValueError,), "an empty sequence", ["empty"])
    raises(lambda: layer(x.float()), (ValueError,), "tokens of another dtype", ["dtype"])
    raises(lambda: layer(x.long()), (ValueError,), "whole numbers as tokens")
    if subject.card.padding:
        keep = paddings(12)["right"]
        raises(lambda: layer(x, keep=keep[:, 1:]), (ValueError,), "a mask of another length", ["keep"])
        raises(lambda: layer(x, keep=keep.float()), (ValueError,), "a mask that is not bool", ["bool"])
