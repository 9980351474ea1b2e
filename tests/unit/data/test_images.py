"""Whole batches of images, and batches that are made ahead."""

import gc
import threading
import time

import numpy as np
import pytest
import torch

from anyformer.data import images as module
from anyformer.data.images import Ahead, crop, mirror, normalise, resize

IMAGES = np.random.default_rng(0).integers(1, 256, size=(5, 6, 8, 3), dtype=np.uint8)


def test_a_crop_is_a_window_of_the_padded_image():
    top, left = np.array([0, 1, 2, 3, 4]), np.array([4, 2, 0, 3, 1])
    found = crop(IMAGES, top, left, 2)
    assert found.shape == (5, 3, 6, 8)
    for n in range(5):
        for y, x in np.ndindex(6, 8):
            row, column = y + top[n] - 2, x + left[n] - 2
            inside = 0 <= row < 6 and 0 <= column < 8
            assert found[n, :, y, x].tolist() == (IMAGES[n, row, column].tolist() if inside else [0, 0, 0])


def test_a_crop_without_padding_is_the_image():
    zero = np.zeros(5, np.int64)
    assert np.array_equal(crop(IMAGES, zero, zero, 0), IMAGES.transpose(0, 3, 1, 2))


def test_mirrored_images_are_those_that_are_named():
    upright = IMAGES.transpose(0, 3, 1, 2)
    found = mirror(upright, np.array([True, False, True, False, False]))
    for n in range(5):
        assert np.array_equal(found[n], np.flip(upright[n], -1) if n in (0, 2) else upright[n])


def test_normalised_channels_have_mean_zero_and_deviation_one():
    images = torch.from_numpy(IMAGES.transpose(0, 3, 1, 2).copy())
    scaled = images.double() / 255
    mean, std = scaled.mean((0, 2, 3)).tolist(), scaled.std((0, 2, 3), correction=0).tolist()
    found = normalise(images, mean, std)
    assert found.dtype == torch.float32
    assert found.shape == images.shape
    torch.testing.assert_close(found.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std((0, 2, 3), correction=0), torch.ones(3))
    assert images.dtype == torch.uint8


def test_a_larger_image_is_between_its_pixels():
    images = torch.tensor([[0.0, 4.0], [8.0, 12.0]])[None, None]
    assert resize(images, 4)[0, 0, 0].tolist() == [0, 1, 3, 4]
    assert resize(images, 4)[0, 0, :, 0].tolist() == [0, 2, 6, 8]
    assert resize(images, 2) is images
    assert resize(torch.rand(2, 3, 32, 32), 224).shape == (2, 3, 224, 224)


# Ahead


def test_the_next_ones_are_made_while_one_is_in_use():
    made, ready = [], threading.Event()

    def make(number):
        made.append(number)
        if number == 3:
            ready.set()
        return 10 * number, threading.current_thread().name

    ahead = Ahead(make, depth=3)
    value, thread = ahead(0)
    assert value == 0
    assert thread.startswith("anyformer-ahead")
    assert ready.wait(20)  # though nobody has asked for number 3
    assert made == [0, 1, 2, 3]
    assert [ahead(number)[0] for number in range(1, 5)] == [10, 20, 30, 40]
    ahead.thread.shutdown()
    assert made == list(range(8))  # each once, in order, and no more than 3 ahead


@pytest.mark.parametrize("order", [range(20), [5, 6, 7, 2, 3, 3, 19, 0, 1], [4, 4, 4]])
def test_neither_the_order_nor_the_timing_matters(order):
    slow = np.random.default_rng(0).random(50) * 0.003

    def make(number):
        time.sleep(slow[number])
        return number**2

    ahead = Ahead(make)
    for number in order:
        assert ahead(number) == number**2
        assert len(ahead.coming) == 2


def test_what_goes_wrong_is_told_to_whoever_asks_for_it():
    def make(number):
        if number == 2:
            raise ValueError("no number 2")
        return number

    ahead = Ahead(make)
    assert [ahead(0), ahead(1)] == [0, 1]
    with pytest.raises(ValueError, match="no number 2"):
        ahead(2)
    assert ahead(3) == 3


def test_the_share_of_waiting(monkeypatch):
    clock = iter([10.0, 12.0, 15.0, 16.0])  # asked and answered, twice
    monkeypatch.setattr(module, "perf_counter", lambda: next(clock))
    ahead = Ahead(lambda number: number)
    assert ahead.share == 0
    ahead(0)
    assert ahead.share == 1
    ahead(1)
    assert ahead.share == pytest.approx(3 / 6)


def test_a_thread_ends_with_its_owner():
    ahead = Ahead(lambda number: number)
    assert ahead(0) == 0
    (thread,) = ahead.thread._threads
    assert thread.is_alive()
    del ahead
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
