"""Vision Transformers of timm and of Hugging Face as ours, with equal outputs in eval mode.

What the weights alone do not say is asked of the model or of its config: heads, activation, eps, pooling. Anything that
ours has not (layer scale, register tokens, a pooler, ...) is an error that names it. Rates of dropout are not weights,
and ours are 0: to go on training with others, `transfer` the result into a model that has them.

Of their files we read safetensors, never pickles.
"""

import json
import re
from collections.abc import Mapping
from itertools import count
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.contract import require_positive
from anyformer.models.transfer import read
from anyformer.models.vit import Pooling, Size, ViT

# Our names and theirs; {} is the number of the layer
TIMM = {
    "class_token": "cls_token",
    "positions": "pos_embed",
    "patches": "patch_embed.proj",
    "mixer_norm": "blocks.{}.norm1",
    "mixer.q": "blocks.{}.attn.qkv",
    "mixer.k": "blocks.{}.attn.qkv",
    "mixer.v": "blocks.{}.attn.qkv",
    "mixer.out": "blocks.{}.attn.proj",
    "channel_norm": "blocks.{}.norm2",
    "channel.wider": "blocks.{}.mlp.fc1",
    "channel.back": "blocks.{}.mlp.fc2",
    "encoder.norm": "norm",
    "head": "head",
}
HUGGING_FACE = {
    "class_token": "embeddings.cls_token",
    "positions": "embeddings.position_embeddings",
    "patches": "embeddings.patch_embeddings.projection",
    "mixer_norm": "layers.{}.layernorm_before",
    "mixer.q": "layers.{}.attention.q_proj",
    "mixer.k": "layers.{}.attention.k_proj",
    "mixer.v": "layers.{}.attention.v_proj",
    "mixer.out": "layers.{}.attention.o_proj",
    "channel_norm": "layers.{}.layernorm_after",
    "channel.wider": "layers.{}.mlp.fc1",
    "channel.back": "layers.{}.mlp.fc2",
    "encoder.norm": "layernorm",
    "head": "classifier",
}
HUGGING_FACE_FILES = {  # and its models before version 5
    **HUGGING_FACE,
    "mixer_norm": "encoder.layer.{}.layernorm_before",
    "mixer.q": "encoder.layer.{}.attention.attention.query",
    "mixer.k": "encoder.layer.{}.attention.attention.key",
    "mixer.v": "encoder.layer.{}.attention.attention.value",
    "mixer.out": "encoder.layer.{}.attention.output.dense",
    "channel_norm": "encoder.layer.{}.layernorm_after",
    "channel.wider": "encoder.layer.{}.intermediate.dense",
    "channel.back": "encoder.layer.{}.output.dense",
}

TIMM_PARTS = {"VisionTransformer", "PatchEmbed", "Conv2d", "Identity", "Sequential", "Block", "LayerNorm", "Attention"}
TIMM_PARTS |= {"Linear", "Mlp", "GELU", "ReLU", "Dropout", "DropPath"}


def from_timm(source: nn.Module | str | Path, *, heads: int | None = None, image_size: Size | None = None) -> ViT:
    """timm's VisionTransformer, or a safetensors file of its weights.

    A model says everything. A file says neither `heads` nor, where images are not square, `image_size`; it is taken to
    be of a model with timm's own eps, 1e-6, activation, gelu, and pooling: the class token if there is one.
    """
    if not isinstance(source, nn.Module):
        if heads is None:
            raise TypeError("a file does not say how many heads the model has: give heads=")
        return assembled(read(source), TIMM, heads=heads, image_size=image_size)
    if heads is not None or image_size is not None:
        raise TypeError("a model says its heads and image_size itself; leave them out")
    model: Any = source
    if type(model).__name__ != "VisionTransformer":
        raise ValueError(f"{type(model).__name__} is not timm's VisionTransformer")
    others = sorted({type(part).__name__ for part in model.modules()} - TIMM_PARTS)
    if others:
        raise ValueError(f"ours can be no VisionTransformer with {', '.join(others)}; it has no such part")
    pooling = {"token": "class", "avg": "mean"}.get(model.global_pool)
    if pooling != ("class" if model.has_class_token else "mean"):
        raise ValueError(
            f"ours takes the class token if there is one, else the mean: global_pool={model.global_pool!r} with "
            f"class_token={model.has_class_token} is neither"
        )
    first, act = model.blocks[0], model.blocks[0].mlp.act
    if getattr(act, "approximate", "none") != "none":
        raise ValueError(f"gelu by approximate={act.approximate!r} is none of our activations; take the exact one")
    return assembled(
        model.state_dict(),
        TIMM,
        heads=first.attn.num_heads,
        image_size=model.patch_embed.img_size,
        eps=first.norm1.eps,
        activation=type(act).__name__.lower(),
    )


def from_hugging_face(source: nn.Module | str | Path) -> ViT:
    """Hugging Face's ViTForImageClassification or ViTModel, or a folder with its model.safetensors and config.json."""
    if isinstance(source, nn.Module):
        model: Any = source
        config, tensors = model.config.to_dict() if hasattr(model, "config") else {}, model.state_dict()
    else:
        path = Path(source) / "model.safetensors" if Path(source).is_dir() else Path(source)
        tensors = read(path)
        config = configuration(path.parent / "config.json")
    if config.get("model_type") != "vit":
        raise ValueError(f"a model of type {config.get('model_type')!r} is no ViT")
    absent = sorted({"num_attention_heads", "image_size", "layer_norm_eps", "hidden_act"} - config.keys())
    if absent:
        raise ValueError(f"the model's config does not say its {', '.join(absent)}")
    before = "vit." if any(name.startswith("vit.") for name in tensors) else ""
    if any(name.startswith(f"{before}pooler.") for name in tensors):
        raise ValueError("a pooler comes after what ours gives: load the model with add_pooling_layer=False")
    names = HUGGING_FACE_FILES if any(name.startswith(f"{before}encoder.layer.") for name in tensors) else HUGGING_FACE
    return assembled(
        tensors,
        {ours: theirs if ours == "head" else before + theirs for ours, theirs in names.items()},
        heads=config["num_attention_heads"],
        image_size=config["image_size"],
        eps=config["layer_norm_eps"],
        activation=config["hidden_act"],
    )


def configuration(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is no model's config")
    return config


def assembled(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, str],
    *,
    heads: int,
    image_size: Size | None,
    eps: float = 1e-6,
    activation: str = "gelu",
) -> ViT:
    """Our model with copies of their tensors, each of which has its place."""
    kinds = sorted({str(tensor.dtype) for tensor in tensors.values()})
    if len(kinds) > 1 or not all(tensor.is_floating_point() for tensor in tensors.values()):
        raise ValueError(f"weights must be floating-point numbers of one kind, not {', '.join(kinds)}")

    def shape(name: str, axes: int) -> tuple[int, ...]:
        theirs = key(name, names)
        if theirs not in tensors:
            raise ValueError(f"there is no tensor {theirs}, so these are not the weights of a ViT that we know")
        if tensors[theirs].dim() != axes:
            raise ValueError(f"{theirs} must have {axes} axes, not shape {tuple(tensors[theirs].shape)}")
        return tuple(tensors[theirs].shape)

    dim, channels, high, wide = shape("patches.weight", 4)
    out = shape("encoder.blocks.0.mixer.out.weight", 2)[1]
    require_positive(heads=heads)
    if out % heads:
        raise ValueError(
            f"heads={heads} does not divide the {out} columns of {key('encoder.blocks.0.mixer.out.weight', names)}"
        )
    pooling: Pooling = "class" if names["class_token"] in tensors else "mean"
    if image_size is None:
        patches = shape("positions", 3)[1] - (pooling == "class")
        side = isqrt(max(0, patches))
        if side**2 != patches:
            raise ValueError(f"{patches} patches are no square: give image_size=(height, width)")
        image_size = side * high, side * wide
    with torch.device("meta"):
        vit = ViT(
            image_size=image_size,
            patch_size=(high, wide),
            classes=shape("head.weight", 2)[0] if key("head.weight", names) in tensors else None,
            dim=dim,
            layers=next(n for n in count(1) if key(f"encoder.blocks.{n}.mixer_norm.weight", names) not in tensors),
            heads=heads,
            head_dim=out // heads,
            channels=channels,
            hidden=shape("encoder.blocks.0.channel.wider.weight", 2)[0],
            activation=activation,
            pooling=pooling,
            eps=eps,
        )
    own = vit.state_dict()
    known = {key(name, names) for name in own}
    missing, unknown = sorted(known - tensors.keys()), sorted(tensors.keys() - known)
    if missing or unknown:
        raise ValueError(
            f"these are not the weights of a model that ours can be: missing {', '.join(missing) or 'none'}; "
            f"unknown {', '.join(unknown) or 'none'}"
        )
    loaded = {}
    for name, ours in own.items():
        theirs = key(name, names)
        tensor = tensors[theirs]
        if ".qkv." in theirs:
            tensor = tensor.tensor_split(3)["qkv".index(name.split(".")[-2])]
        if tensor.shape != ours.shape:
            raise ValueError(f"{theirs} gives {name} the shape {tuple(tensor.shape)}, not {tuple(ours.shape)}")
        loaded[name] = tensor.detach().clone()
    vit.load_state_dict(loaded, assign=True)
    return vit


def key(name: str, names: Mapping[str, str]) -> str:
    """What they call the tensor that we call so."""
    found = re.fullmatch(r"(?:encoder\.blocks\.(\d+)\.)?(.+?)(\.weight|\.bias)?", name)
    assert found is not None
    return names[found[2]].format(found[1]) + (found[3] or "")
