"""Law 1: the fast form equals the paper's formula: outputs, and gradients of every input and parameter."""

import torch
from torch import Tensor

from anyformer.contract import Attention
from anyformer.laws.evidence import gradients, near, paddings, parameters
from anyformer.laws.subject import Subject


def claimed(subject: Subject) -> bool:
    return subject.catalogued


def check(subject: Subject) -> None:
    for causal in subject.orders:
        for length in subject.lengths:
            for training in subject.trainings:
                layer_equals_formula(subject, causal, length, training)
            core = subject.core(causal)
            if core is not None:
                core_equals_formula(subject, core, length)


def layer_equals_formula(subject: Subject, causal: bool, length: int, training: bool) -> None:
    layer = subject.layer(causal, training=training)
    x = subject.tokens(2, length).requires_grad_()
    inputs: list[tuple[str, Tensor | None, Tensor | None]] = [("", None, None)]
    longer = subject.tokens(2, length + 9, seed=2).requires_grad_()
    if subject.card.cross:
        inputs.append((" over a longer context", longer, None))
        if not causal and length > 4:
            inputs.append((" over a shorter context", longer[:, : length - 3], None))
    if subject.card.padding:
        inputs += [(f" padded {where}", None, keep) for where, keep in paddings(length).items()]
        if subject.card.cross:
            inputs.append((" over a padded context", longer, paddings(length + 9)["left"]))
    for kind, context, keep in inputs:
        what = f"causal={causal}, training={training}, length {length}{kind}"
        torch.manual_seed(7)
        fast = layer(x, context, keep=keep)
        torch.manual_seed(7)
        literal = layer.formula(x, context, keep=keep)
        near(fast, literal, what)
        weight = torch.randn(fast.shape, dtype=fast.dtype, generator=torch.Generator().manual_seed(3))
        wanted = [x, *([] if context is None else [longer]), *parameters(layer)]
        for found, expected in zip(gradients(fast, weight, wanted), gradients(literal, weight, wanted), strict=True):
            near(found, expected, f"{what}: a gradient")


def core_equals_formula(subject: Subject, core: Attention, length: int) -> None:
    """q, k and v as a foreign model gives them, and a gradient that is one number expanded."""
    q, k = (subject.heads_of_tokens(core, length, seed=seed).requires_grad_() for seed in (1, 2))
    v = torch.randn(2, core.heads, length, core.head_dim + 3, dtype=torch.float64).requires_grad_()
    fast, literal = core.attend(q, k, v), core.formula(q, k, v)
    what = f"the core alone, causal={core.causal}, length {length}"
    near(fast, literal, what)
    for found, expected in zip(gradients(fast, None, (q, k, v)), gradients(literal, None, (q, k, v)), strict=True):
        near(found, expected, f"{what}: an expanded gradient")
