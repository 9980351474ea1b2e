"""The CIFAR-10 task: what a batch holds, what is scored, and that seed and step alone decide a batch."""

import math
import time
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from anyformer.data.cifar10 import MEAN, STD, Split, digest, stand_in
from anyformer.tasks.cifar10 import Cifar10, confusion
from anyformer.training.loop import train

TRAIN, TEST = stand_in(50, 0), stand_in(23, 1)


def numbered(count):
    """Images that say which they are, by every pixel."""
    images = np.broadcast_to(np.arange(1, count + 1, dtype=np.uint8)[:, None, None, None], (count, 32, 32, 3))
    return Split(np.array(images), (np.arange(count) % 10).astype(np.uint8))


def task(**options):
    return Cifar10(**{"train": TRAIN, "test": TEST, "batch_size": 8, **options})


def test_a_batch_has_bytes_and_labels():
    batch = task().batch(0)
    assert set(batch) == {"images", "labels"}
    assert (batch["images"].dtype, tuple(batch["images"].shape)) == (torch.uint8, (8, 3, 32, 32))
    assert (batch["labels"].dtype, tuple(batch["labels"].shape)) == (torch.int64, (8,))
    assert batch["images"].is_contiguous()


@pytest.mark.parametrize("options", [{}, {"padding": 0}, {"flip": False}])
def test_an_epoch_has_every_image_once(options):
    ten = task(train=numbered(50), **options)
    assert ten.steps_per_epoch == 7
    epochs = []
    for epoch in range(3):
        batches = [ten.batch(7 * epoch + step) for step in range(7)]
        assert [len(batch["labels"]) for batch in batches] == [8] * 6 + [2]
        names = torch.cat([batch["images"].amax((1, 2, 3)) for batch in batches]).long() - 1
        assert sorted(names.tolist()) == list(range(50))
        assert torch.equal(names % 10, torch.cat([batch["labels"] for batch in batches]))
        epochs.append(names.tolist())
    assert epochs[0] != epochs[1] != epochs[2]


def test_an_image_without_changes_is_itself():
    plain = task(padding=0, flip=False, batch_size=50).batch(0)
    true = {(image.transpose(2, 0, 1).tobytes(), int(label)) for image, label in zip(*TRAIN, strict=True)}
    assert {(i.numpy().tobytes(), int(n)) for i, n in zip(plain["images"], plain["labels"], strict=True)} == true


def test_crops_go_everywhere_and_half_of_the_images_are_mirrored():
    image = np.zeros((1, 32, 32, 3), np.uint8)
    image[0, 16, 10] = 1, 2, 3  # seen as it is or mirrored, within 4 pixels
    many = Split(np.repeat(image, 2000, 0), np.zeros(2000, np.uint8))
    found = task(train=many, batch_size=2000).batch(0)["images"]
    assert torch.equal(found.sum((2, 3)), torch.tensor([1, 2, 3]).expand(2000, 3))
    places = found[:, 0].flatten(1).argmax(1)
    rows, columns = places // 32, places % 32
    assert set(rows.tolist()) == set(range(12, 21))
    assert set(columns.tolist()) == set(range(6, 15)) | set(range(17, 26))
    assert 0.45 < (columns > 15).float().mean() < 0.55
    assert (torch.bincount(rows)[12:] - 2000 / 9).abs().max() < 70  # five standard deviations
    upright = task(train=many, batch_size=2000, flip=False).batch(0)["images"][:, 0].flatten(1).argmax(1) % 32
    assert set(upright.tolist()) == set(range(6, 15))


def test_a_batch_depends_on_seed_and_step_alone():
    first = [task(seed=3).draw(step) for step in range(20)]
    jumping, ahead = task(seed=3), task(seed=3)
    for step in (5, 6, 19, 2, 2, 0):
        torch.manual_seed(99)
        assert all(torch.equal(jumping.batch(step)[name], first[step][name]) for name in first[step])
    for step in range(20):
        time.sleep(0.002 * (step % 3))
        assert all(torch.equal(ahead.batch(step)[name], first[step][name]) for name in first[step])


def test_other_seeds_steps_and_epochs_change_the_images_otherwise():
    alike = Split(np.repeat(TRAIN.images[:1], 50, 0), np.repeat(TRAIN.labels[:1], 50))  # so that the order is no matter
    ten, other = task(train=alike, seed=3), task(train=alike, seed=4)
    found = [ten.draw(0), ten.draw(1), ten.draw(ten.steps_per_epoch), other.draw(0)]
    assert len({batch["images"].numpy().tobytes() for batch in found}) == 4


def test_the_share_of_waiting_is_told():
    ten = task()
    assert ten.waiting == 0
    for step in range(5):
        ten.batch(step)
    assert 0 < ten.waiting <= 1


def test_what_it_is():
    assert task(seed=2).what == {
        "task": "Cifar10",
        "train": {"images": 50, "sha256": digest(TRAIN)},
        "test": {"images": 23, "sha256": digest(TEST)},
        "batch_size": 8,
        "padding": 4,
        "flip": True,
        "size": 32,
        "seed": 2,
    }


# Scores


class Knowing(nn.Module):
    """Knows the test images' classes by heart, apart from every fourth one, for which it says the next class."""

    def __init__(self, size=32):
        super().__init__()
        self.sure, self.size = nn.Parameter(torch.tensor(50.0)), size
        self.seen = []

    def forward(self, images):
        assert images.shape[1:] == (3, self.size, self.size)
        assert images.dtype == torch.float32
        first = sum(map(len, self.seen))
        self.seen.append(images)
        said = torch.from_numpy(TEST.labels[first : first + len(images)].astype(np.int64))
        said[(torch.arange(first, first + len(images)) % 4) == 0] += 1
        return nn.functional.one_hot(said % 10, 10) * self.sure


def test_the_whole_test_set_is_scored_as_it_is():
    model = Knowing()
    scores = task().evaluate(model)
    assert list(map(len, model.seen)) == [8, 8, 7]
    seen = torch.cat(model.seen).double() * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    assert torch.equal((255 * seen).round().permute(0, 2, 3, 1), torch.from_numpy(TEST.images).double())
    assert scores == {"loss": pytest.approx(50 * 6 / 23), "accuracy": pytest.approx(17 / 23)}


def test_images_are_given_in_the_size_that_is_asked_for():
    model = Knowing(size=48)
    assert task(size=48).evaluate(model)["accuracy"] == pytest.approx(17 / 23)


def test_the_loss_of_a_batch():
    class Guessing(nn.Module):
        def forward(self, images):
            return torch.zeros(len(images), 10)

    ten = task(padding=0, flip=False)
    batch = ten.batch(0)
    total, count, others = ten.loss(Guessing(), batch)
    assert count == 8
    assert total.item() == pytest.approx(8 * math.log(10))
    assert others == {"accuracy": int((batch["labels"] == 0).sum())}


def test_what_is_taken_for_what():
    with torch.no_grad():
        logits = task().test_logits(Knowing())
    labels = torch.from_numpy(TEST.labels.astype(np.int64))
    found = confusion(logits, labels)
    assert found.sum(1).tolist() == np.bincount(TEST.labels, minlength=10).tolist()
    assert found.diagonal().sum() == 17
    wrong = torch.zeros(10, 10, dtype=torch.int64)
    for label in labels[::4].tolist():
        wrong[label, (label + 1) % 10] += 1
    assert torch.equal(found - torch.diag(found.diagonal()), wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"padding": -1}, "padding must be at least 0"),
        ({"size": 0}, "size must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"train": Split(TRAIN.images[:0], TRAIN.labels[:0])}, "train must be uint8 images .* at least one"),
        ({"train": Split(TRAIN.images, TRAIN.labels[:7])}, "and N labels, .* and 7"),
        (
            {"test": Split(TEST.images.transpose(0, 3, 1, 2), TEST.labels)},
            r"test must be .* not uint8 \(23, 3, 32, 32\)",
        ),
        ({"test": Split(TEST.images / 255, TEST.labels)}, "test must be uint8 images"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        task(**options)


# Learning


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.out = nn.Conv2d(3, 32, 8, 8), nn.Linear(32, 10)

    def forward(self, images):
        return self.out(self.patches(images).relu().mean((2, 3)))


def test_a_model_learns_the_stand_in():
    ten = Cifar10(stand_in(2000, 0), stand_in(200, 1), batch_size=64)
    lines = train(
        Tiny(),
        ten,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        steps=5 * ten.steps_per_epoch,
        quiet=True,
    )
    assert lines[0]["accuracy"] < 0.4
    assert lines[-1]["evaluation"]["accuracy"] > 0.9


def test_a_run_that_was_killed_goes_on_with_the_same_batches(tmp_path, monkeypatch):
    def run(folder, resume=False):
        sgd = partial(torch.optim.SGD, lr=1e-2)
        options = {"optimizer": sgd, "steps": 12, "folder": tmp_path / folder, "checkpoint_every": 2, "quiet": True}
        return train(Tiny(), task(), resume=resume, **options)

    def killing(self, step):
        if step == 9:
            raise KeyboardInterrupt
        return self.draw(step)

    whole = run("whole")
    with monkeypatch.context() as patch:
        patch.setattr(Cifar10, "batch", killing)
        with pytest.raises(KeyboardInterrupt):
            run("killed")
    assert run("killed", resume=True) == whole
