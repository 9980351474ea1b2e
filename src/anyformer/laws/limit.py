"""Law 6: under the options that the card names, the mechanism is softmax attention exactly."""

import torch

from anyformer import catalog
from anyformer.laws.evidence import near, paddings
from anyformer.laws.subject import Subject


def claimed(subject: Subject) -> bool:
    return bool(subject.card.limits)


def check(subject: Subject) -> None:
    length = subject.card.block + 5
    shape = {name: subject.options[name] for name in ("heads", "head_dim") if name in subject.options}
    for options in subject.card.limits:
        for causal in subject.orders:
            torch.manual_seed(0)
            limit = subject.make(causal=causal, **options).double()
            softmax = catalog.build("softmax", dim=subject.dim, causal=causal, **shape).double()
            softmax.load_state_dict(limit.state_dict())
            x = subject.tokens(2, length)
            for keep in [None, *(paddings(length).values() if subject.card.padding else [])]:
                what = f"causal={causal}, {options}, {'no padding' if keep is None else 'padded'}"
                near(limit(x, keep=keep), softmax(x, keep=keep), f"{what}: compared with softmax")
