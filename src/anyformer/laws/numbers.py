"""Law 8: short floats and large logits stay finite and near the float64 answer."""

import torch
from torch import Tensor

from anyformer.laws.evidence import gradients, near, paddings, parameters
from anyformer.laws.subject import Subject

LONG = 2_048  # tokens, enough for sums to leave float16


def claimed(subject: Subject) -> bool:
    return True


def check(subject: Subject) -> None:
    for causal in subject.orders:
        half = subject.layer(causal, torch.bfloat16)
        wide = subject.layer(causal)
        wide.load_state_dict({name: t.double() for name, t in half.state_dict().items()})
        x = subject.tokens(2, subject.short)
        found = half(x.bfloat16())
        assert found.dtype == torch.bfloat16, f"causal={causal}: bfloat16 in, {found.dtype} out"
        near(found, wide(x.bfloat16().double()), f"causal={causal}, bfloat16", 0.05, least=0)
        finite_gradients(half, x.bfloat16(), f"causal={causal}, bfloat16")
        for dtype, tolerance in ((torch.float16, 0.02), (torch.bfloat16, 0.05)):
            autocast(subject, causal, dtype, tolerance)
        large_logits(subject, causal)


def autocast(subject: Subject, causal: bool, dtype: torch.dtype, tolerance: float) -> None:
    """Ordinary tokens, padded ones, and many with large values; then the same as a stream."""
    what = f"causal={causal}, autocast {dtype}"
    length, long = subject.short, subject.fit(LONG)
    single, wide = subject.layer(causal, torch.float32), subject.layer(causal)
    x = subject.tokens(2, length)
    with torch.autocast("cpu", dtype=dtype):
        found = single(x.float())
        finite_gradients(single, x.float(), what)
    near(found, wide(x), what, tolerance, least=0)
    for where, keep in paddings(length).items() if subject.card.padding else ():
        with torch.autocast("cpu", dtype=dtype):
            found = single(x.float(), keep=keep)
        near(found, wide(x, keep=keep), f"{what}, padded {where}", tolerance, least=0)
    if subject.card.stream == "exact" and causal:
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
            state, outputs = single.start(batch=2), []
            for chunk in x.float().split(length // 3, 1):
                y, state = single.stream(chunk, state)
                outputs.append(y)
        near(torch.cat(outputs, 1), wide(x), f"{what}, streamed", tolerance, least=0)
    single, wide = (subject.layer(causal, kind, length=long) for kind in (torch.float32, torch.float64))
    x = subject.tokens(1, long)
    x[:, :, 0] += 100  # so that sums over the tokens do not cancel
    with torch.no_grad():
        with torch.autocast("cpu", dtype=dtype):
            found = single(x.float())
        assert found.isfinite().all(), f"{what}: {long} tokens of size 100 give values that are not finite"


def large_logits(subject: Subject, causal: bool) -> None:
    """q.k / sqrt(D) up to 100 in size, in float32."""
    core = subject.core(causal, length=subject.short)
    if core is None:
        layer, x = subject.layer(causal, torch.float32), 20 * subject.tokens(2, subject.short)
        near(layer(x.float()), subject.layer(causal)(x), f"causal={causal}, large inputs", 1e-3, least=0)
        finite_gradients(layer, x.float(), f"causal={causal}, large inputs")
        return
    q, k, v = (subject.heads_of_tokens(core, subject.short, seed=seed) for seed in (1, 2, 3))
    scale = (100 / (q @ k.mT / core.head_dim**0.5).abs().max()) ** 0.5
    q, k = q * scale, k * scale
    for keep in [None, *(paddings(subject.short).values() if subject.card.padding else [])]:
        what = f"causal={causal}, logits of 100{'' if keep is None else ', padded'}"
        expected = core.double().formula(q, k, v, keep)
        single = [t.float().requires_grad_() for t in (q, k, v)]
        found = core.float().attend(single[0], single[1], single[2], keep)
        near(found, expected, what, 1e-3, least=0)
        for gradient in gradients(found, None, single):
            assert gradient.isfinite().all(), f"{what}: gradients that are not finite"


def finite_gradients(layer: torch.nn.Module, x: Tensor, what: str) -> None:
    x = x.clone().requires_grad_()
    for gradient in gradients(layer(x), None, [x, *parameters(layer)]):
        assert gradient.isfinite().all(), f"{what}: gradients that are not finite"
