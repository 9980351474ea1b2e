"""The Vision Transformer of every mechanism."""

import copy
import pickle
from functools import partial

import pytest
import torch
from safetensors.torch import load, save
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import anyformer as af
from anyformer.card import find, specs
from anyformer.models.vit import ViT, resampled
from anyformer.parts.positions import sinusoids

DIM, HEADS, LAYERS, CLASSES, SIZE, PATCH, B = 16, 2, 2, 5, 12, 4, 3
PATCHES = (SIZE // PATCH) ** 2


def fact(spec):
    entry, variant = find(spec)
    return entry.card.of(variant)


ABLE = [spec for spec in specs() if fact(spec).causal != "only"]
GRIDS = [spec for spec in ABLE if "grid" in fact(spec).tiny]


def vit(mixer="softmax", **options):
    torch.manual_seed(0)
    sizes = {"image_size": SIZE, "patch_size": PATCH, "classes": CLASSES, "dim": DIM, "heads": HEADS, "layers": LAYERS}
    return ViT(mixer, **{**sizes, **options})


def images(batch=B, channels=3, height=SIZE, width=SIZE):
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1))


LABELS = torch.arange(B) % CLASSES


# Every mechanism


@pytest.mark.parametrize("pooling", ["class", "mean"])
@pytest.mark.parametrize("spec", ABLE)
def test_a_step_of_every_mechanism(spec, pooling):
    """By name: the model knows all that the mechanism needs."""
    if spec in GRIDS and pooling == "class":
        with pytest.raises(ValueError, match=f"'{spec}' mixes a grid, .* take pooling='mean'"):
            vit(spec, pooling=pooling)
        return
    model = vit(spec, pooling=pooling)
    adapt = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        adapt.zero_grad()
        loss = cross_entropy(model(images()), LABELS)
        loss.backward()
        adapt.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    for name, weight in model.named_parameters():
        assert weight.grad.isfinite().all(), name
        assert weight.grad.any() or name.endswith(".k.bias"), name  # which softmax does not see


def test_who_is_only_causal_cannot(drop):
    drop()
    vit("mean_of_all:plain")
    with pytest.raises(ValueError, match=r"mixer 'mean_of_all:halved' is only causal; these can do without: .*softmax"):
        vit("mean_of_all:halved")
    with pytest.raises(ValueError, match=r"is only causal; these can do without: .*softmax"):
        vit(lambda dim, causal: af.build("mean_of_all:halved", dim=dim, heads=2, causal=True))


def test_mechanisms_by_layer():
    window = partial(af.build, "local", heads=HEADS, window=3, bias=True)
    model = vit(["performer:relu", window, "linformer"], layers=3)
    kinds = [type(block.mixer.core).__name__ for block in model.encoder.blocks]
    assert kinds == ["Performer", "Local", "Linformer"]
    assert model.encoder.blocks[2].mixer.core.max_length == PATCHES + 1
    assert vit(window)(images()).shape == (B, CLASSES)
    with pytest.raises(ValueError, match="names 2 mechanisms for 3 layers"):
        vit(["softmax", "linformer"], layers=3)


# What it computes


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_a_vit_is_its_parts(pooling, positions):
    """The convolution is a matrix product on patches."""
    model = vit(pooling=pooling, positions=positions, dim=24, image_size=(8, 12), patch_size=(2, 4)).double()
    x = images(height=8, width=12).double()
    rows = []
    for top in range(0, 8, 2):
        rows += [x[:, :, top : top + 2, left : left + 4].flatten(1) for left in range(0, 12, 4)]
    y = torch.stack(rows, 1) @ model.patches.weight.flatten(1).T + model.patches.bias
    if pooling == "class":
        model.class_token.data.normal_()
        y = torch.cat([model.class_token.repeat(B, 1, 1), y], 1)
    y = model.encoder(y + model.positions)
    assert y.shape == (B, 12 + (pooling == "class"), 24)
    assert_close(model(x), model.head(y[:, 0] if pooling == "class" else y.mean(1)))


def test_the_class_token_stands_for_the_image():
    model, x = vit(), images()
    before = model(x)
    with torch.no_grad():
        model.class_token.normal_()
    assert not torch.allclose(model(x), before)
    assert vit(pooling="mean").class_token is None


def test_without_classes_there_is_no_head():
    model = vit(classes=None)
    assert model(images()).shape == (B, DIM)
    assert set(vit().state_dict()) - set(model.state_dict()) == {"head.weight", "head.bias"}
    assert torch.equal(vit().head(model(images())), vit()(images()))


def test_items_do_not_see_each_other():
    model, x = vit().double(), images().double()
    assert_close(torch.cat([model(x[n : n + 1]) for n in range(B)]), model(x))


@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_order_shows_through_positions_only(pooling):
    for strength in (0, 1):
        model, x = vit(pooling=pooling).double(), images().double()
        with torch.no_grad():
            model.positions.mul_(strength)
        assert torch.allclose(model(x.unflatten(3, (-1, PATCH)).flip(3).flatten(3)), model(x)) == (not strength)


def test_sinusoids_of_rows_and_columns():
    model = vit(positions="sinusoidal", dim=24, image_size=(8, 12))
    assert "positions" not in model.state_dict()
    first, of_grid = model.positions[0, 0], model.positions[0, 1:].unflatten(0, (2, 3))
    assert not first.any()
    assert_close(of_grid[1, 2, :12], sinusoids(torch.tensor(1), 12, torch.float32))
    assert_close(of_grid[1, 2, 12:], sinusoids(torch.tensor(2), 12, torch.float32))


def test_every_norm_has_the_eps():
    norms = [part for part in vit(eps=0.25).modules() if isinstance(part, torch.nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [0.25] * (2 * LAYERS + 1)


# Sizes


def counted(*, image, patch, channels, dim, inner, layers, hidden, classes, token):
    tokens = (image // patch) ** 2 + token
    patches = channels * patch**2 * dim + dim
    attention = 3 * (dim * inner + inner) + inner * dim + dim
    block = attention + dim * hidden + hidden + hidden * dim + dim + 4 * dim
    return patches + token * dim + tokens * dim + layers * block + 2 * dim + dim * classes + classes


def test_parameters():
    sizes = {"image": SIZE, "patch": PATCH, "channels": 3, "dim": DIM, "inner": DIM, "layers": LAYERS}
    for pooling in ("class", "mean"):
        found = sum(weight.numel() for weight in vit(pooling=pooling).parameters())
        assert found == counted(**sizes, hidden=4 * DIM, classes=CLASSES, token=pooling == "class")
    found = sum(weight.numel() for weight in vit(head_dim=5, hidden=24, channels=1).parameters())
    assert found == counted(**{**sizes, "channels": 1, "inner": 10}, hidden=24, classes=CLASSES, token=1)
    without = sum(weight.numel() for weight in vit(bias=False).parameters())
    assert sum(weight.numel() for weight in vit().parameters()) - without == 4 * DIM * LAYERS


def test_heads_wider_than_the_model_and_another_device():
    """12 heads of 128 in 768 channels; without data, but any move to the CPU would fail."""
    with torch.device("meta"):
        model = ViT(image_size=224, patch_size=16, classes=10, dim=768, layers=12, heads=12, head_dim=128)
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 10)
    sizes = {"image": 224, "patch": 16, "channels": 3, "dim": 768, "inner": 1536, "layers": 12, "hidden": 3072}
    assert sum(weight.numel() for weight in model.parameters()) == counted(**sizes, classes=10, token=1)


def test_resampled_positions():
    positions = torch.randn(1, 1 + 12, DIM, generator=torch.Generator().manual_seed(0))
    found = resampled(positions, (3, 4), (6, 5))
    assert found.shape == (1, 31, DIM)
    assert torch.equal(found[:, 0], positions[:, 0])
    assert_close(resampled(positions, (3, 4), (3, 4)), positions)
    assert_close(resampled(torch.ones(1, 12, DIM), (3, 4), (9, 2)), torch.ones(1, 18, DIM))
    assert resampled(positions.bfloat16(), (3, 4), (6, 5)).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="13 positions are none of a grid of 3 x 3"):
        resampled(positions, (3, 3), (6, 6))


# Training and copies


@pytest.mark.parametrize("rate", ["dropout", "drop_path"])
def test_dropout_and_drop_path_act_in_training_only(rate):
    model, x = vit(**{rate: 0.5}), images(8)
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), model(x))
    assert torch.equal(vit().eval()(x), model(x))
    assert torch.equal(vit()(x), vit()(x))


def test_drop_path_rises_with_the_layers():
    assert [block.drop_path.rate for block in vit(layers=4, drop_path=0.2).encoder.blocks] == pytest.approx(
        [0.05, 0.1, 0.15, 0.2]
    )


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("spec", ["softmax", "linformer", "performer:positive", "performer:relu", "performer:exp"])
def test_copies(spec, positions):
    model, x = vit(spec, positions=positions), images()
    loaded = vit(spec, positions=positions)
    for tensor in loaded.state_dict().values():
        tensor.zero_()
    assert not torch.equal(loaded(x), model(x))
    loaded.load_state_dict(load(save(model.state_dict())))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert torch.equal(other(x), model(x))


@pytest.mark.parametrize("spec", ["softmax", "linformer", "performer"])
def test_bfloat16_autocast(spec):
    model = vit(spec)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(images())
        cross_entropy(found, LABELS).backward()
    assert found.dtype == torch.bfloat16
    assert_close(found.float(), model(images()), rtol=0, atol=0.05)
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


# What makes no sense


@pytest.mark.parametrize(
    ("x", "error", "says"),
    [
        ([[1.0]], TypeError, r"images must be a tensor of shape \(batch, 3, 12, 12\), not list"),
        (images(height=16), ValueError, r"shape \(batch, 3, 12, 12\), not \(3, 3, 16, 12\); resize them"),
        (images(channels=1), ValueError, r"not \(3, 1, 12, 12\)"),
        (images().permute(0, 2, 3, 1), ValueError, r"not \(3, 12, 12, 3\)"),
        (images()[0], ValueError, r"not \(3, 12, 12\)"),
        (images(0), ValueError, "images is empty"),
        (images().to(torch.uint8), ValueError, "floating-point numbers of 16 bits or more, not torch.uint8"),
        (images().double(), ValueError, "images has dtype torch.float64 and the model torch.float32"),
        (images().to("meta"), ValueError, "images is on meta and the model on cpu"),
    ],
)
def test_images_that_make_no_sense(x, error, says):
    with pytest.raises(error, match=says):
        vit()(x)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"patch_size": 5}, ValueError, "patches of 5 x 5 do not fill images of 12 x 12"),
        ({"image_size": (12, 10)}, ValueError, "patches of 4 x 4 do not fill images of 12 x 10"),
        ({"image_size": 12.0}, TypeError, "image_size is a whole number, not 12.0"),
        ({"patch_size": (4, 0)}, ValueError, "patch_size must be at least 1"),
        ({"classes": 0}, ValueError, "classes must be at least 1"),
        ({"heads": 3}, ValueError, "dim=16 does not divide into 3 heads"),
        ({"pooling": "max"}, ValueError, "pooling is one of 'class', 'mean', not 'max'"),
        ({"positions": "none"}, ValueError, "positions is one of 'learned', 'sinusoidal', not 'none'"),
        ({"positions": "sinusoidal", "dim": 18}, ValueError, "a dim that 4 divides, not 18"),
        ({"eps": "1e-6"}, TypeError, "eps is a number"),
        ({"bias": 1}, TypeError, "bias is True or False"),
        ({"mixer": "softmaxx"}, ValueError, "did you mean 'softmax'"),
        ({"mixer": "lambda_layer", "head_dim": 4}, TypeError, "no option 'head_dim'"),
    ],
)
def test_options_that_make_no_sense(options, error, says):
    with pytest.raises(error, match=says):
        vit(**options)
