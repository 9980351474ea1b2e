"""Law 10: a module is its weights: it can be saved, loaded, copied and compiled, and a forward changes nothing."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from anyformer import catalog
from anyformer.contract import Attention, AttentionLayer
from anyformer.laws.evidence import near, parameters, same
from anyformer.laws.subject import Subject


def claimed(subject: Subject) -> bool:
    return True


@torch.no_grad()
def check(subject: Subject) -> None:
    for causal in subject.orders:
        layer, x = subject.fresh(causal).double().eval(), subject.tokens(2, subject.short)
        changes_nothing(subject, layer, x, f"causal={causal}, eval")
        y = layer(x)
        torch.manual_seed(98)
        same(layer(x), y, f"causal={causal}: the same input twice")
        same(subject.fresh(causal).double().eval()(x), y, f"causal={causal}: built again from the same seed")
        for how, road in roads(subject, causal, layer).items():
            same(taken(road, how)(x), y, f"causal={causal}: {how}")
        if isinstance(layer, AttentionLayer):
            core = alone(subject, causal, layer.core)
            alike = same if layer.premix(x) is None else near  # other products, other rounding
            alike(layer.merge(core.attend(*layer.project(x, None, None))), y, f"causal={causal}: the core alone")
        if subject.card.compiles:
            compiled(layer, x, y)
        if not subject.card.batch_statistics:
            changes_nothing(subject, layer.train(), x, f"causal={causal}, training")


def changes_nothing(subject: Subject, layer: torch.nn.Module, x: Tensor, what: str) -> None:
    """Neither forward nor backward leaves a trace in the module or in what it was given."""
    saved = {name: t.clone() for name, t in layer.state_dict().items()}
    inside = hidden(layer) if subject.catalogued else {}
    tokens = x.clone()
    with torch.enable_grad():
        total = layer(tokens).sum()
        if total.requires_grad:
            torch.autograd.grad(total, parameters(layer), allow_unused=True)
    same(tokens, x, f"{what}: the tokens after a forward")
    now = layer.state_dict()
    assert now.keys() == saved.keys(), f"{what}: forward changed the names in the state_dict"
    for name, value in saved.items():
        same(now[name], value, f"{what}: {name} after a forward")
    after = hidden(layer) if subject.catalogued else {}
    changed = [name for name in inside.keys() | after.keys() if inside.get(name) != after.get(name)]
    assert not changed, f"{what}: forward changed {', '.join(changed)}, which is state hidden in the module"


def hidden(module: torch.nn.Module) -> dict[str, str]:
    """Whatever a module keeps beside its weights, in words."""
    return {
        f"{path}.{name}".lstrip("."): repr(value.tolist() if isinstance(value, Tensor) else value)
        for path, part in module.named_modules()
        for name, value in (vars(part) | part._buffers).items()
        if name not in ("_parameters", "_buffers", "_modules")
    }


def roads(subject: Subject, causal: bool, layer: Any) -> dict[str, Callable[[], Any]]:
    """The same module by every road."""

    def loaded(saved: dict[str, Tensor]) -> Any:
        torch.manual_seed(99)
        other = subject.make(causal=causal, **subject.sized(None)) if subject.catalogued else subject.make()
        other.double().eval().load_state_dict(saved)
        return other

    def through_file() -> Any:
        buffer = io.BytesIO()
        torch.save(layer.state_dict(), buffer)
        buffer.seek(0)
        return loaded(torch.load(buffer, weights_only=True))

    def through_safetensors() -> Any:
        tensors = {name: t.contiguous() for name, t in layer.state_dict().items()}
        return loaded(safetensors.torch.load(safetensors.torch.save(tensors)) if tensors else {})

    return {
        "through its state_dict": lambda: loaded(layer.state_dict()),
        "through torch.save": through_file,
        "through safetensors": through_safetensors,
        "deepcopied": lambda: copy.deepcopy(layer),
        "pickled": lambda: pickle.loads(pickle.dumps(layer)),
    }


def alone(subject: Subject, causal: bool, core: Attention) -> Attention:
    """The core built without a layer, with the same weights."""
    around = ("dim", "heads", "head_dim", "key_heads", "bias")
    options = {name: value for name, value in subject.options.items() if name not in around} | subject.sized(None)
    made = catalog.core(subject.name, heads=core.heads, head_dim=core.head_dim, causal=causal, **options)
    made.double().eval().load_state_dict(core.state_dict())
    return made


def taken(road: Callable[[], Any], how: str) -> Any:
    try:
        return road()
    except Exception as refused:
        raise AssertionError(f"cannot be {how}: {type(refused).__name__}: {refused}") from refused


def compiled(layer: Any, x: Tensor, y: Tensor) -> None:
    """Captured whole, without a break; the backend does not matter here."""
    torch.compiler.reset()
    captured = torch.compile(layer, backend="aot_eager", fullgraph=True)
    near(taken(lambda: captured(x), "compiled, as the card claims"), y, "compiled")
    exported = taken(lambda: torch.export.export(layer, (x,)).module(), "exported, as the card claims")
    near(exported(x), y, "exported")
