"""From a name to a layer: `build("linear", dim=512)`, `core("linear", heads=8, head_dim=64)`."""

import importlib
import inspect
from typing import Any

from anyformer.card import Card, able, did_you_mean, find
from anyformer.contract import Attention, AttentionLayer, Mixer, require_positive


def mechanism(spec: str) -> type[Attention] | type[Mixer]:
    """The class that a name means."""
    entry, _ = find(spec)
    idea = importlib.import_module(entry.module.rpartition(".")[0])
    if str(entry.path.parent) not in idea.__path__:  # the idea has a second folder, beside ours
        idea.__path__.append(str(entry.path.parent))
    module = importlib.import_module(entry.module)
    return next(
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and isinstance(vars(kind).get("card"), Card)
    )


def build(spec: str, *, dim: int, **options: Any) -> Mixer:
    """A layer: (batch, length, dim) in and out.

    Attention mechanisms also take `heads` (8), `head_dim` (dim / heads), `causal`, `key_heads`, `bias`
    and the options of their own core; an option that is not theirs is a TypeError.
    """
    kind = mechanism(spec)
    require_positive(dim=dim)
    if not issubclass(kind, Attention):
        return carded(spec, kind(**resolved(spec, kind, {"dim": dim, **options})))
    around = {name: options.pop(name) for name in ("key_heads", "bias") if name in options}
    options.setdefault("heads", 8)
    if options.get("head_dim") is None:
        require_positive(heads=options["heads"])
        if dim % options["heads"]:
            raise ValueError(
                f"dim={dim} does not divide into {options['heads']} heads: give heads= a divisor of {dim}, or head_dim="
            )
        options["head_dim"] = dim // options["heads"]
    attention = kind(**resolved(spec, kind, options, also=("dim", "key_heads", "bias")))
    return carded(spec, AttentionLayer(attention, dim=dim, **around))


def carded(spec: str, made: Mixer) -> Mixer:
    """With the facts of its own variant."""
    entry, variant = find(spec)
    made.card = entry.card.of(variant)
    return made


def core(spec: str, *, heads: int, head_dim: int, **options: Any) -> Attention:
    """A core: q, k and v in, without projections, for models that have their own."""
    kind = mechanism(spec)
    if not issubclass(kind, Attention):
        raise ValueError(
            f"{spec} has no queries and keys, so it has no core; these have: "
            f"{able(lambda card: card.slot == 'attention')}"
        )
    return kind(**resolved(spec, kind, {"heads": heads, "head_dim": head_dim, **options}))


def resolved(spec: str, kind: type, options: dict[str, Any], also: tuple[str, ...] = ()) -> dict[str, Any]:
    """The options with the variant's own, after checking that the mechanism knows and can do them."""
    entry, variant = find(spec)
    card = entry.card.of(variant)
    chosen = entry.card.variants.get(variant or "", {})
    known = [name for name in inspect.signature(kind).parameters if name not in chosen]
    for name in options:
        if name in chosen:
            raise TypeError(f"{name}={options[name]!r} contradicts {entry.name}:{variant}, which sets {chosen[name]!r}")
        if name not in known:
            names = sorted({*known, *also})
            raise TypeError(
                f"{entry.name} has no option {name!r}{did_you_mean(name, names)}; its options are {', '.join(names)}"
            )
    causal = options.get("causal", False)
    if causal is True and card.causal == "no":
        raise ValueError(f"{spec} cannot be causal; these can: {able(lambda other: other.causal != 'no')}")
    if causal is False and card.causal == "only":
        raise ValueError(
            f"{spec} is only causal: say causal=True; these can do without: "
            f"{able(lambda other: other.causal != 'only')}"
        )
    return {**options, **chosen}
