"""Operations counted while a program runs, on real tensors or on `meta` ones, where nothing is computed.

A product of matrices, a convolution and fused attention count by formula (a multiplication and an addition are two),
a reduction counts what it reads, and everything else the elements that it writes. Views count nothing.
"""

from collections.abc import Callable
from math import log2, prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten


def operations(run: Callable[[], object]) -> int:
    """How many operations `run` takes, backward passes inside it included."""
    with Fused(), Count() as count:
        run()
    return count.total


class Count(TorchDispatchMode):
    total: int = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = op._opname
        formula = FORMULAS.get(name) or FORMULAS.get(name.rstrip("_"))
        if formula is None:
            with self:  # in inference mode composite operations arrive whole
                parts = op.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = op(*args, **kwargs)
        if formula is not None:
            self.total += formula(args, kwargs, out)
        elif name not in WRITES_NOTHING:
            self.total += written(op, args, kwargs, out)
        return out


def written(op: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Elements that a plain operation handles."""
    given = tensors((args, kwargs))
    if torch.Tag.reduction in op.tags:
        return max((t.numel() for t in given), default=0)
    if op._schema.is_mutable:  # in place, or into out=
        return sum(t.numel() for t in tensors(out) or given[:1])
    held = {t.untyped_storage()._cdata for t in given}
    return sum(t.numel() for t in tensors(out) if t.untyped_storage()._cdata not in held)


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def registered(formula: Callable[..., int]) -> Callable[[Any, Any, Any], int]:
    """A formula of torch's own counter."""

    def count(args: Any, kwargs: Any, out: Any) -> int:
        return formula(*args, **{name: value for name, value in kwargs.items() if name != "out"}, out_val=out)

    return count


def product(args: Any, kwargs: Any, out: Any) -> int:
    """mv, dot and their like, the last two arguments: each element of the first factor is used once."""
    return 2 * args[-2].numel()


def outer(args: Any, kwargs: Any, out: Any) -> int:
    return 2 * out.numel()


def fourier(args: Any, kwargs: Any, out: Any) -> int:
    """5 n log2 n for each transform of length n."""
    longer = out if out.numel() >= args[0].numel() else args[0]
    length = prod(longer.shape[axis] for axis in args[1])
    return int(5 * longer.numel() * log2(max(2, length)))


def attention(args: Any, kwargs: Any, out: Any) -> int:
    """Two products over the pairs: q.k and weight.v."""
    q, k, v = args[:3]
    causal = kwargs.get("is_causal", args[4] if len(args) > 4 else False)
    return 2 * pairs(q, k, causal) * (k.shape[-1] + v.shape[-1])


def attention_backward(args: Any, kwargs: Any, out: Any) -> int:
    """Five: the scores again, dweight = dy.v and the products that give dq, dk and dv."""
    _, q, k, v = args[:4]
    causal = kwargs.get("is_causal", args[7] if len(args) > 7 else False)
    return 2 * pairs(q, k, causal) * (3 * k.shape[-1] + 2 * v.shape[-1])


def pairs(q: Tensor, k: Tensor, causal: bool) -> int:
    """Queries and keys that meet; torch aligns the first query with the first key."""
    heads, queries, keys = prod(q.shape[:-2]), q.shape[-2], k.shape[-2]
    if not causal:
        return heads * queries * keys
    early = min(queries, keys)
    return heads * (early * (early + 1) // 2 + (queries - early) * keys)


FORMULAS: dict[str, Callable[[Any, Any, Any], int]] = {
    **{key.__name__: registered(formula) for key, formula in flop_registry.items() if hasattr(key, "default")},
    **dict.fromkeys(("mv", "addmv", "dot", "vdot"), product),
    "addr": outer,
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), fourier),
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
}
WRITES_NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"}


class Fused(TorchFunctionMode):
    """On `meta`, torch would replace fused attention by plain products of N x M elements; this keeps it fused."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return (attend if function is scaled_dot_product_attention else function)(*args, **kwargs)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    fits = query.dim() == 4 and query.shape[:2] == key.shape[:2] and query.shape[3] == value.shape[3]
    if query.device.type != "meta" or not fits or dropout_p or (attn_mask is not None and attn_mask.requires_grad):
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, float("-inf")).to(query.dtype)
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
