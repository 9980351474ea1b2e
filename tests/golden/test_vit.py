"""Our ViT against timm's and Hugging Face's with the same weights."""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from anyformer.convert.vit import from_hugging_face, from_timm
from anyformer.models.vit import resampled

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]

DIM, HEADS, LAYERS, CLASSES, SIZE, PATCH = 24, 3, 2, 5, 12, 4
VIT = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": DIM, "depth": LAYERS, "num_heads": HEADS}


def timm_vit(**options):
    module = pytest.importorskip("timm.models.vision_transformer")
    return randomised(module.VisionTransformer(**{**VIT, "num_classes": CLASSES, **options}))


def hugging_face_vit(kind="ViTForImageClassification", options=None, **config):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 40}
    sizes |= {"image_size": SIZE, "patch_size": PATCH, "num_labels": CLASSES, "attn_implementation": "sdpa"}
    return randomised(getattr(transformers, kind)(transformers.ViTConfig(**{**sizes, **config}), **(options or {})))


def randomised(model):
    """Weights that leave no part without a say; float64."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(mean=float("norm" in name and name.endswith("weight")), std=0.3)
    return model.double().eval()


def images(model_size=(SIZE, SIZE), channels=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, channels, *model_size, generator=generator, dtype=torch.float64)


def check(ours, theirs, x, answer=lambda y: y):
    """Outputs and the images' gradients agree, in eval and in training mode."""
    x = x.requires_grad_()
    for training in (False, True):
        found, expected = ours.train(training)(x), answer(theirs.train(training)(x))
        assert_close(found, expected, rtol=1e-10, atol=1e-10)
        assert expected.std() > 0.1
        scale = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found).sin()
        (gradient,), (wanted,) = (torch.autograd.grad((y * scale).sum(), x) for y in (found, expected))
        assert_close(gradient, wanted, rtol=1e-8, atol=1e-10)


# timm


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"img_size": (8, 20), "patch_size": (4, 2), "in_chans": 1},
        {"num_classes": 0, "mlp_ratio": 1.5},
        {"class_token": False, "global_pool": "avg", "fc_norm": False},
        {"norm_layer": partial(nn.LayerNorm, eps=0.1), "act_layer": nn.ReLU},
        {"dynamic_img_size": True},
    ],
    ids=["plain", "oblong", "headless", "mean", "eps-relu", "dynamic"],
)
def test_timm(options):
    theirs = timm_vit(**options)
    ours = from_timm(theirs)
    x = images(theirs.patch_embed.img_size, theirs.in_chans)
    check(ours, theirs, x)
    counts = [sum(weight.numel() for weight in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1]
    places = {weight.data_ptr() for weight in theirs.parameters()}
    assert not any(weight.data_ptr() in places for weight in ours.parameters())  # copies
    assert all(weight.requires_grad for weight in ours.parameters())


def test_timm_with_dropout():
    """Its rates are not weights."""
    theirs = timm_vit(drop_path_rate=0.5, proj_drop_rate=0.5, drop_rate=0.5)
    ours = from_timm(theirs).train()
    assert_close(ours(images()), theirs(images()), rtol=1e-10, atol=1e-10)


def test_a_timm_file(tmp_path):
    for name, size, said in (("square", SIZE, None), ("oblong", (8, 20), (8, 20))):
        theirs, path = timm_vit(img_size=size), tmp_path / f"{name}.safetensors"
        save_file(theirs.state_dict(), path)
        check(from_timm(path, heads=HEADS, image_size=said), theirs, images(theirs.patch_embed.img_size))
    with pytest.raises(ValueError, match=r"10 patches are no square: give image_size="):
        from_timm(path, heads=HEADS)
    with pytest.raises(TypeError, match="give heads="):
        from_timm(path)
    with pytest.raises(ValueError, match=r"heads=5 does not divide the 24 columns of blocks.0.attn.proj.weight"):
        from_timm(path, heads=5, image_size=(8, 20))
    with pytest.raises(ValueError, match=r"pos_embed gives positions the shape \(1, 11, 24\), not \(1, 10, 24\)"):
        from_timm(path, heads=HEADS, image_size=SIZE)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"init_values": 0.1}, "with LayerScale"),
        ({"act_layer": "quick_gelu"}, "with QuickGELU"),
        ({"act_layer": partial(nn.GELU, approximate="tanh")}, "approximate='tanh'"),
        ({"global_pool": "map"}, "with AttentionPoolLatent"),
        ({"global_pool": "avg"}, "global_pool='avg' with class_token=True"),
        ({"global_pool": "max", "class_token": False}, "global_pool='max' with class_token=False"),
        ({"global_pool": "avg", "class_token": False}, "missing norm.bias, norm.weight; unknown fc_norm.bias, fc_norm"),
        ({"reg_tokens": 2}, "missing none; unknown reg_token"),
        ({"qk_norm": True}, "missing none; unknown blocks.0.attn.k_norm.bias, .*, blocks.1.attn.q_norm.weight$"),
        ({"qkv_bias": False}, "missing blocks.0.attn.qkv.bias, blocks.1.attn.qkv.bias; unknown none"),
        ({"pos_embed": "none"}, "missing pos_embed; unknown none"),
        ({"no_embed_class": True}, r"pos_embed gives positions the shape \(1, 9, 24\), not \(1, 10, 24\)"),
    ],
)
def test_timm_models_that_ours_cannot_be(options, says):
    with pytest.raises(ValueError, match=says):
        from_timm(timm_vit(**options))


def test_what_is_no_timm_model():
    with pytest.raises(ValueError, match="Linear is not timm's VisionTransformer"):
        from_timm(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="a model says its heads and image_size itself"):
        from_timm(timm_vit(), heads=HEADS)


def test_a_damaged_set_of_weights_names_what_is_wrong(tmp_path):
    path, good = tmp_path / "vit.safetensors", timm_vit().state_dict()
    for change, says in (
        ({"blocks.1.mlp.fc1.weight": None}, "missing blocks.1.mlp.fc1.weight; unknown none"),
        ({"blocks.3.mlp.fc1.weight": torch.zeros(2).double()}, "missing none; unknown blocks.3.mlp.fc1.weight"),
        ({"patch_embed.proj.weight": None}, "no tensor patch_embed.proj.weight"),
        ({"patch_embed.proj.weight": torch.zeros(24, 48).double()}, r"patch_embed.proj.weight must have 4 axes"),
        ({"blocks.1.attn.qkv.bias": torch.zeros(70).double()}, r"qkv.bias gives .*\.1\.mixer\..\.bias the shape \(2"),
        ({"head.bias": torch.zeros(5)}, "floating-point numbers of one kind, not torch.float32, torch.float64"),
        ({name: tensor.long() for name, tensor in good.items()}, "of one kind, not torch.int64"),
    ):
        save_file({name: t for name, t in {**good, **change}.items() if t is not None}, path)
        with pytest.raises(ValueError, match=says):
            from_timm(path, heads=HEADS)


def test_pickles_are_not_read(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(timm_vit().state_dict(), path)
    for load in (partial(from_timm, heads=HEADS), from_hugging_face):
        with pytest.raises(
            ValueError, match=r"pytorch_model.bin is no .safetensors file; .* pickle .* can run any code"
        ):
            load(path)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(("old", "new"), [((4, 4), (7, 7)), ((6, 4), (3, 8)), ((5, 5), (5, 5))])
def test_resampled_positions(old, new, first):
    pos_embed = pytest.importorskip("timm.layers.pos_embed")
    positions = torch.randn(1, first + old[0] * old[1], DIM, generator=torch.Generator().manual_seed(0))
    expected = pos_embed.resample_abs_pos_embed(positions, new, old, num_prefix_tokens=first)
    assert_close(resampled(positions, old, new), expected)


# Hugging Face


@pytest.mark.parametrize(
    "config",
    [{}, {"image_size": [8, 20], "num_channels": 1}, {"layer_norm_eps": 0.1, "hidden_act": "relu"}],
    ids=["plain", "oblong", "eps-relu"],
)
def test_hugging_face_classifier(config):
    theirs = hugging_face_vit(**config)
    size = theirs.vit.embeddings.image_size
    check(from_hugging_face(theirs), theirs, images(size, theirs.config.num_channels), lambda y: y.logits)


def test_hugging_face_model():
    theirs = hugging_face_vit("ViTModel", {"add_pooling_layer": False})
    check(from_hugging_face(theirs), theirs, images(), lambda y: y.last_hidden_state[:, 0])
    with pytest.raises(ValueError, match="load the model with add_pooling_layer=False"):
        from_hugging_face(hugging_face_vit("ViTModel"))


@pytest.mark.parametrize("kind", ["ViTForImageClassification", "ViTModel"])
def test_a_hugging_face_folder(kind, tmp_path):
    """As they write it, with the names of before version 5, and with those of a model in memory."""
    model = kind == "ViTModel"
    theirs = hugging_face_vit(kind, {"add_pooling_layer": False} if model else {}, layer_norm_eps=0.1)
    theirs.save_pretrained(tmp_path)
    answer = (lambda y: y.last_hidden_state[:, 0]) if model else lambda y: y.logits
    check(from_hugging_face(tmp_path), theirs, images(), answer)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    check(from_hugging_face(tmp_path / "model.safetensors"), theirs, images(), answer)

    config = json.loads((tmp_path / "config.json").read_text())
    for change, says in (
        ({"model_type": "deit"}, "a model of type 'deit' is no ViT"),
        ({"hidden_act": "quick_gelu"}, "activation is one of .*, not 'quick_gelu'"),
        ({"num_attention_heads": None}, "config does not say its num_attention_heads"),
    ):
        changed = {name: value for name, value in {**config, **change}.items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=says):
            from_hugging_face(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config.json is no model's config"):
        from_hugging_face(tmp_path)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: hugging_face_vit("ViTForMaskedImageModeling"),
            "unknown decoder.0.bias, .*, vit.embeddings.mask_token",
        ),
        (lambda: hugging_face_vit(qkv_bias=False), "missing vit.layers.0.attention.k_proj.bias, .*; unknown none"),
        (lambda: nn.Linear(2, 2), "a model of type None is no ViT"),
    ],
)
def test_hugging_face_models_that_ours_cannot_be(make, says):
    with pytest.raises(ValueError, match=says):
        from_hugging_face(make())
