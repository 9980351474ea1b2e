"""Every efficient-Transformer idea under one interface, measured honestly on your own machine."""

from typing import TYPE_CHECKING, Any

from anyformer.card import Card, mechanisms

if TYPE_CHECKING:
    from anyformer.catalog import build, core

__version__ = "0.1.0"
__all__ = ["Card", "build", "core", "mechanisms"]


def __getattr__(name: str) -> Any:
    if name in ("build", "core"):  # torch comes in with the first layer
        from anyformer import catalog

        return getattr(catalog, name)
    raise AttributeError(f"module 'anyformer' has no attribute {name!r}")
