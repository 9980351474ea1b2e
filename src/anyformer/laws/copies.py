"""Law 10: a module is its weights: it can be saved, loaded, copied and compiled, and a forward changes nothing."""

import copy
import io
import pickle
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from anyformer.contract import AttentionLayer
from anyformer.laws.evidence import near, same
from anyformer.laws.subject import Subject


def claimed(subject: Subject) -> bool:
    return True


@torch.no_grad()
def check(subject: Subject) -> None:
    for causal in subject.orders:
        layer, x = subject.layer(causal), subject.tokens(2, subject.card.block + 5)
        before = {name: t.clone() for name, t in layer.state_dict().items()}
        y = layer(x)
        after = layer.state_dict()
        assert after.keys() == before.keys(), f"causal={causal}: forward changed the names in the state_dict"
        for name, value in before.items():
            same(after[name], value, f"causal={causal}: {name} after a forward in eval")
        same(layer(x), y, f"causal={causal}: the same input twice")
        same(subject.layer(causal)(x), y, f"causal={causal}: built again from the same seed")
        for how, twin in twins(subject, causal, layer).items():
            same(twin(x), y, f"causal={causal}: {how}")
        if isinstance(layer, AttentionLayer):
            alone = layer.merge(layer.core.attend(*layer.project(x, None, None)))
            same(alone, y, f"causal={causal}: the core without its layer")
        if subject.card.compiles:
            compiled(layer, x, y)


def twins(subject: Subject, causal: bool, layer: Any) -> dict[str, Any]:
    """The same module by every road."""

    def another() -> Any:
        torch.manual_seed(99)
        made = subject.make(causal=causal) if subject.catalogued else subject.make()
        return made.double().eval()

    loaded = another()
    loaded.load_state_dict(layer.state_dict())
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    saved = another()
    saved.load_state_dict(torch.load(buffer, weights_only=True))
    tensors = {name: t.contiguous() for name, t in layer.state_dict().items()}
    safe = another()
    if tensors:
        safe.load_state_dict(safetensors.torch.load(safetensors.torch.save(tensors)))
    return {
        "through its state_dict": loaded,
        "through torch.save": saved,
        "through safetensors": safe,
        "deepcopied": copy.deepcopy(layer),
        "pickled": pickle.loads(pickle.dumps(layer)),
    }


def compiled(layer: Any, x: Tensor, y: Tensor) -> None:
    """Captured whole, without a break; the backend does not matter here."""
    torch.compiler.reset()
    near(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), y, "compiled")
    near(torch.export.export(layer, (x,)).module()(x), y, "exported")
