"""Law 8: short floats and large logits stay finite and near the float64 answer."""

import torch
from torch import Tensor

from anyformer.laws.evidence import gradients, near, parameters
from anyformer.laws.subject import Subject


def claimed(subject: Subject) -> bool:
    return True


def check(subject: Subject) -> None:
    length = subject.card.block + 5
    for causal in subject.orders:
        x = subject.tokens(2, length)
        half = subject.layer(causal, torch.bfloat16)
        wide = subject.layer(causal).to(torch.float64)
        wide.load_state_dict({name: t.double() for name, t in half.state_dict().items()})
        found = half(x.bfloat16())
        assert found.dtype == torch.bfloat16, f"causal={causal}: bfloat16 in, {found.dtype} out"
        close(found, wide(x.bfloat16().double()), f"causal={causal}, bfloat16", 0.05)
        finite_gradients(half, x.bfloat16(), f"causal={causal}, bfloat16")

        single = subject.layer(causal, torch.float32)
        wide = subject.layer(causal)
        for dtype, tolerance in ((torch.float16, 0.02), (torch.bfloat16, 0.05)):
            with torch.autocast("cpu", dtype=dtype):
                found = single(x.float())
                finite_gradients(single, x.float(), f"causal={causal}, autocast {dtype}")
            close(found, wide(x), f"causal={causal}, autocast {dtype}", tolerance)
        large_logits(subject, causal)


def large_logits(subject: Subject, causal: bool) -> None:
    """q.k / sqrt(D) up to 100 in size, in float32."""
    core = subject.core(causal)
    if core is None:
        layer, x = subject.layer(causal, torch.float32), 20 * subject.tokens(2, 40)
        close(layer(x.float()), subject.layer(causal)(x), f"causal={causal}, large inputs", 1e-3)
        return
    q, k, v = (subject.heads_of_tokens(core, subject.card.block + 5, seed=seed) for seed in (1, 2, 3))
    scale = (100 / (q @ k.mT / core.head_dim**0.5).abs().max()) ** 0.5
    q, k = q * scale, k * scale
    expected = core.formula(q, k, v)
    single = [t.float().requires_grad_() for t in (q, k, v)]
    found = core.float().attend(*single)
    close(found, expected, f"causal={causal}, logits of 100", 1e-3)
    for gradient in gradients(found, None, single):
        assert gradient.isfinite().all(), f"causal={causal}, logits of 100: gradients that are not finite"


def close(found: Tensor, expected: Tensor, what: str, tolerance: float) -> None:
    near(found, expected, what, tolerance)


def finite_gradients(layer: torch.nn.Module, x: Tensor, what: str) -> None:
    x = x.clone().requires_grad_()
    for gradient in gradients(layer(x), None, [x, *parameters(layer)]):
        assert gradient.isfinite().all(), f"{what}: gradients that are not finite"
