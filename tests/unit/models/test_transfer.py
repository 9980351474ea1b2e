"""Weights from a ViT into a ViL or ViP and back."""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import anyformer as af
from anyformer.mechanisms.lowrank.linformer import identity
from anyformer.models.transfer import Transferred, read, transfer
from anyformer.models.vit import ViT, resampled
from anyformer.training import checkpoint

LAYERS = 2
OWN = {
    "softmax": [],
    "linformer": ["E", "F"],
    "performer:positive": ["projection_PD"],
    "performer:relu": ["projection_PD"],
    "performer:exp": ["projection_PD"],
}
OTHERS = [spec for spec in OWN if spec != "softmax"]


def vit(spec="softmax", seed=0, **options):
    torch.manual_seed(seed)
    sizes = {"image_size": 8, "patch_size": 4, "classes": 3, "dim": 16, "heads": 2, "layers": LAYERS}
    return ViT(spec, **{**sizes, **options}).eval()


def of_cores(spec):
    return [f"encoder.blocks.{layer}.mixer.core.{name}" for layer in range(LAYERS) for name in OWN[spec]]


def images():
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


SHARED = list(vit().state_dict())


def test_what_a_vit_shares():
    assert len(SHARED) == 4 + 16 * LAYERS + 2 + 2
    assert not [name for name in SHARED if ".core." in name]


@pytest.mark.parametrize("spec", OTHERS)
def test_there_and_back(spec):
    """Shared weights are copied; a mechanism's own stay as it was built, and are left out on the way back."""
    source, target = vit().state_dict(), vit(spec, seed=1)
    built = {name: t.clone() for name, t in target.state_dict().items()}
    report = transfer(source, target)
    assert sorted(report.copied) == sorted(SHARED)
    assert report.new == of_cores(spec)
    assert report.dropped == []
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, built[name] if name in report.new else source[name])

    by_hand = vit(spec, seed=2)
    by_hand.load_state_dict({**built, **source})
    assert torch.equal(target(images()), by_hand(images()))
    assert not torch.equal(target(images()), vit(spec, seed=1)(images()))

    back = vit(seed=3)
    assert transfer(target.state_dict(), back) == Transferred(SHARED, [], of_cores(spec))
    assert torch.equal(back(images()), vit()(images()))


def test_a_vil_that_mixes_nothing_is_the_vit_it_came_from():
    target = vit(partial(af.build, "linformer", heads=2, max_length=5, rank=5, bias=True), seed=1)
    transfer(vit().state_dict(), target)
    for block in target.encoder.blocks:
        identity(block.mixer.core)
    assert_close(target(images()), vit()(images()))


def test_the_same_model_is_copied_whole():
    target = vit(seed=1)
    assert transfer(vit().state_dict(), target) == Transferred(SHARED, [], [])
    assert torch.equal(target(images()), vit()(images()))


def test_projections_of_one_shape_are_shared():
    target = vit("performer:exp", seed=1)
    report = transfer(vit("performer:relu").state_dict(), target)
    assert (report.new, report.dropped) == ([], [])
    assert set(of_cores("performer:exp")) < set(report.copied)


def test_another_shape_is_new_and_dropped():
    projections = of_cores("performer:positive")
    report = transfer(vit("performer:positive").state_dict(), vit("performer:hyperbolic", classes=7))
    changed = [*projections, "head.weight", "head.bias"]
    assert (report.new, report.dropped) == (changed, changed)
    assert str(report).splitlines()[1:] == [
        "new: encoder.blocks.*.mixer.core.projection_PD (2), head.weight, head.bias",
        "dropped: encoder.blocks.*.mixer.core.projection_PD (2), head.weight, head.bias",
    ]


def test_the_report_says_what_happened():
    report = transfer({"0.weight": torch.ones(2, 2)}, torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert str(report) == "copied: 0.weight\nnew: 0.bias\ndropped: nothing"


def test_positions_for_a_larger_image():
    source, target = vit().state_dict(), vit(seed=1, image_size=16)
    assert transfer(source, target).new == ["positions"]
    source["positions"] = resampled(source["positions"], (2, 2), target.grid)
    assert transfer(source, target) == Transferred(SHARED, [], [])
    assert torch.equal(target.positions, source["positions"])


def test_other_precisions_are_converted_and_whole_numbers_are_not_weights():
    target = vit(seed=1)
    transfer(vit().double().state_dict(), target)
    assert target.head.weight.dtype == torch.float32
    assert torch.equal(target(images()), vit()(images()))
    report = transfer({**vit().state_dict(), "head.bias": torch.ones(3, dtype=torch.int8)}, target)
    assert (report.new, report.dropped) == (["head.bias"], ["head.bias"])


def test_a_model_that_shares_nothing():
    target = vit()
    says = (
        r"it has a \(2,\), and the model class_token \(1, 1, 16\), positions \(1, 5, 16\), patches.weight .*, \.\.\.$"
    )
    with pytest.raises(ValueError, match=says):
        transfer({"a": torch.ones(2)}, target)
    with pytest.raises(ValueError, match="it has none"):
        transfer({}, target)


# Files


def test_the_model_of_a_training_checkpoint(tmp_path):
    model = vit()
    adapt = torch.optim.Adam(model.parameters())
    cross_entropy(model(images()), torch.tensor([0, 2])).backward()
    adapt.step()
    tensors = checkpoint.tensors_of(model, adapt)
    checkpoint.save(tmp_path, checkpoint.Checkpoint(1, {}, 0, [], tensors))
    found = read(tmp_path / checkpoint.LAST, "model.")
    assert sorted(found) == sorted(SHARED)
    target = vit("linformer", seed=1)
    assert transfer(found, target).new == of_cores("linformer")
    assert torch.equal(target.head.weight, model.head.weight)
    assert len(read(tmp_path / checkpoint.LAST)) == len(tensors)


def test_files_that_are_not_read(tmp_path):
    whole = tmp_path / "whole.safetensors"
    save_file(vit().state_dict(), whole)
    assert sorted(read(str(whole))) == sorted(SHARED)
    with pytest.raises(ValueError, match=r"holds no tensor whose name begins with 'model\.'"):
        read(whole, "model.")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere.safetensors"):
        read(tmp_path / "nowhere.safetensors")
    for name in ("weights.bin", "weights.pt", "weights"):
        torch.save(vit().state_dict(), tmp_path / name)
        with pytest.raises(ValueError, match=r"is no .safetensors file; .* a pickle .* can run any code"):
            read(tmp_path / name)
    (tmp_path / "weights.bin").rename(tmp_path / "renamed.safetensors")
    (tmp_path / "short.safetensors").write_bytes(whole.read_bytes()[:-1])
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    (tmp_path / "huge.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "empty.safetensors").touch()
    for name in ("renamed", "short", "huge", "empty"):
        with pytest.raises(ValueError, match=f"{name}.safetensors is damaged or no safetensors file"):
            read(tmp_path / f"{name}.safetensors")
