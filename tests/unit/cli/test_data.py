"""`anyformer data`: data sets by name, and what is told about one."""

import json

import numpy as np
import pytest

from anyformer.cli import data, main
from anyformer.data import cifar10
from anyformer.data.cifar10 import Part, digest, stand_in

SPLITS = stand_in(50, 1), stand_in(20, 2)


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A folder of the binary layout that counts as the real data set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, parts = tmp_path / "source", []
    folder.mkdir()
    for part, split in zip(cifar10.PARTS, SPLITS, strict=True):
        parts.append(Part(part.name, part.batches, len(split.labels), digest(split)))
        rows = np.column_stack([split.labels, split.images.transpose(0, 3, 1, 2).reshape(len(split.labels), -1)])
        for name, batch in zip(part.batches, np.split(rows, len(part.batches)), strict=True):
            (folder / f"{name}.bin").write_bytes(batch.tobytes())
    monkeypatch.setattr(cifar10, "PARTS", parts)
    return folder


def refused(capsys, *words):
    assert main(["data", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    *progress, error = err.splitlines()
    assert not any("error" in line for line in progress)
    return error.removeprefix("anyformer: error: ")


def test_data_sets_are_listed_by_their_files(capsys):
    assert main(["data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(data.data_sets())
    assert any(line.startswith("cifar10  CIFAR-10: 50,000 training") for line in lines)
    assert main(["data", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(data.data_sets())


def test_a_file_that_fetches_nothing_is_no_data_set():
    assert "cifar10" in data.data_sets()
    assert "images" not in data.data_sets()


def test_listing_needs_no_torch(python):
    code = "import sys; from anyformer.cli import main; main(['data']); sys.exit('torch' in sys.modules)"
    assert python("-c", code).returncode == 0


def test_a_data_set_is_stored_in_the_users_cache(capsys, source, tmp_path):
    assert main(["data", "cifar10", "--from", str(source)]) == 0
    folder = tmp_path / "cache" / "anyformer" / "cifar10"
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"cifar10 is in {folder}, from {source}",
        "train: 50 images, 5 of each class",
        "test: 20 images, 2 of each class",
    ]
    assert err == f"reading {source}\n"
    assert [digest(split) for split in cifar10.load()] == [digest(split) for split in SPLITS]
    assert main(["data", "cifar10"]) == 0
    assert capsys.readouterr().out.startswith(f"cifar10 is in {folder}, from an earlier fetch\n")


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_a_figure_of_the_first_images(capsys, source, tmp_path, ending):
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "deep" / f"{name}{ending}" for name in "ab"]
    for path in paths:
        words = ["data", "cifar10", "--from", str(source), "--to", str(tmp_path / "to"), "--figure", str(path)]
        assert main([*words, "--json"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        found = json.loads(out)
        assert (found["name"], found["folder"], found["origin"]) == ("cifar10", str(tmp_path / "to"), str(source))
        assert found["figure"] == str(path)
        assert [(row["part"], row["images"]) for row in found["parts"]] == [("train", 50), ("test", 20)]
        assert [row["sha256"] for row in found["parts"]] == [digest(split) for split in SPLITS]
        assert set(found["parts"][0]["of_each_class"].values()) == {5}
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {path.name for path in paths}
    if ending == ".png":
        image = pytest.importorskip("PIL.Image").open(paths[0])
        assert len(image.convert("RGB").getcolors(1 << 20)) > 100
    else:
        assert first.count(b"<image ") == 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar"], "there is no data set 'cifar'; did you mean 'cifar10'?; there are cifar10"),
        (["--to", "x"], "--from, --to and --figure need the name of a data set: cifar10"),
        (["cifar10", "--figure", "x.jpg"], "--figure takes a file that ends in .png or .svg, not x.jpg"),
        (["cifar10", "--from", "nowhere"], "nowhere does not exist: give a folder, or cifar-10-binary.tar.gz"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, source, words, message):
    assert refused(capsys, *words) == message


def test_without_a_network_the_ways_are_told_in_one_line(capsys, source, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "URL", (tmp_path / "nowhere.tar.gz").as_uri())
    monkeypatch.setenv("PATH", "")
    error = refused(capsys, "cifar10")
    assert error.startswith("CIFAR-10 comes in three ways, and two failed: ")
    assert "anyformer data cifar10 --from" in error
