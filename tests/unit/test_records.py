"""Records: appended however a run ends, read back whatever a crash left, and silent about whose machine it was."""

import getpass
import importlib.util
import json
import os
import platform
import subprocess
import sys

import pytest

from anyformer import records
from anyformer.records import LARGEST_LINE, append, latest, machine, read, recording


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "runs.jsonl"


def run(path, kind="bench", **results):
    with recording(
        path, kind, {"names": ["linear"], "seconds": 3.0}, seed=7, packages=["pytest", "no-such-thing"]
    ) as r:
        r["results"].append(results)
        r["repeats"]["linear"] = [1.0, 2.5]


# Writing


def test_a_run_is_one_line(path):
    run(path, speed=1.5)
    run(path, speed=2.5)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["results"] for line in lines] == [[{"speed": 1.5}], [{"speed": 2.5}]]
    first, second = read(path)
    assert first["results"] == [{"speed": 1.5}]
    assert second["status"] == "done"
    assert second["repeats"] == {"linear": [1.0, 2.5]}


def test_a_record_says_what_ran_where_and_with_what(path):
    run(path)
    (record,) = read(path)
    assert record["schema"] == 1
    assert (record["kind"], record["seed"]) == ("bench", 7)
    assert record["what"] == {"names": ["linear"], "seconds": 3.0}
    assert record["started"] <= record["ended"]
    assert {"python", "torch", "anyformer", "pytest"} <= set(record["versions"])
    assert "no-such-thing" not in record["versions"]
    assert record["machine"] == machine()


def test_appending_leaves_earlier_bytes_alone(path):
    run(path)
    before = path.read_bytes()
    run(path)
    assert path.read_bytes().startswith(before)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), "cancelled", None),
        (ValueError("no such length"), "failed", "ValueError: no such length"),
        (SystemExit(3), "failed", "SystemExit: 3"),
        (MemoryError(), "failed", "MemoryError: "),
    ],
)
def test_a_run_that_ends_badly_is_a_record_too(path, error, status, said):
    with pytest.raises(type(error)), recording(path, "bench", {}) as record:  # noqa: PT012
        record["results"].append({"row": 1})
        raise error
    (found,) = read(path)
    assert found["status"] == status
    assert found.get("error") == said
    assert found["results"] == [{"row": 1}]
    assert found["ended"]


@pytest.mark.parametrize(("result", "kind"), [(float("nan"), ValueError), (object(), TypeError)])
def test_results_that_are_no_json_leave_a_failed_record(path, result, kind):
    with pytest.raises(kind), recording(path, "bench", {"n": 1}) as record:
        record["results"].append(result)
    (found,) = read(path)
    assert found["status"] == "failed"
    assert found["error"].startswith("cannot be written: ")
    assert found["what"] == {"n": 1}


def test_without_a_path_nothing_is_written(tmp_path):
    run(None)
    assert list(tmp_path.iterdir()) == []


def test_processes_that_append_at_once_do_not_mix_their_lines(path, source):
    code = (
        "import sys; from pathlib import Path; from anyformer.records import append\n"
        "for n in range(60): append(Path(sys.argv[1]), {'schema': 1, 'who': sys.argv[2], 'n': n, 'long': 'x' * 20000})"
    )
    environment = {**os.environ, "PYTHONPATH": str(source.parent)}
    running = [subprocess.Popen([sys.executable, "-c", code, str(path), who], env=environment) for who in "ab"]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    found = read(path)
    for who in "ab":
        assert [r["n"] for r in found if r["who"] == who] == list(range(60))
    assert len(found) == 120


def test_a_line_that_lands_between_looking_and_writing_is_not_overwritten(path, monkeypatch):
    append(path, {"schema": 1, "kind": "first"})
    look = os.pread

    def meanwhile(*where):
        with path.open("ab") as other:
            other.write(LINE + b"\n")
        return look(*where)

    monkeypatch.setattr(os, "pread", meanwhile)
    append(path, {"schema": 1, "kind": "last"})
    assert [r["kind"] for r in read(path)] == ["first", "bench", "last"]


# Reading


LINE = json.dumps(
    {
        "schema": 1,
        "kind": "bench",
        "ok": True,
        "none": None,
        "text": 'quote " and \u00fc',
        "numbers": [1.5e-7, {"a": {}}],
    }
).encode()


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_a_line_that_a_crash_cut_short_is_passed_over(path, newline):
    """Wherever it was cut."""
    path.parent.mkdir()
    for cut in range(1, len(LINE)):
        path.write_bytes(LINE + b"\n" + LINE[:cut] + newline)
        assert len(read(path)) == 1, LINE[:cut]


def test_appending_after_a_torn_line_starts_a_new_one(path):
    path.parent.mkdir()
    path.write_bytes(LINE + b"\n" + LINE[:40])
    append(path, {"schema": 1, "kind": "after"})
    assert [r["kind"] for r in read(path)] == ["bench", "after"]


def test_a_last_line_without_its_newline_counts(path):
    path.parent.mkdir()
    path.write_bytes(LINE)
    append(path, {"schema": 1, "kind": "after"})
    assert [r["kind"] for r in read(path)] == ["bench", "after"]


@pytest.mark.parametrize(
    "line",
    [
        b"no json at all",
        b"<<<<<<< HEAD",
        b'{"schema":1,"kind":bench}',
        b'{"schema":1 "kind":"bench"}',
        b'{"kind":"ben',
        b"[1, 2]",
        b"3",
        b"null",
        b'{"schema":0}',
        b'{"kind":"bench"}',
        b"\xff\xfe\x00",
        b'{"schema":1,"text":"\xff"}',
        b"[" * 100_000,
        b'{"schema":' * 100_000,
    ],
    ids=lambda line: line[:20].decode("latin-1"),
)
def test_a_hostile_line_is_refused_by_its_number(path, line):
    path.parent.mkdir()
    path.write_bytes(LINE + b"\n\n" + line + b"\n" + LINE + b"\n")
    with pytest.raises(
        ValueError, match=r"runs\.jsonl, line 3 is no (JSON|record of schema 1): restore the file from git"
    ):
        read(path)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(path, monkeypatch):
    monkeypatch.setattr(records, "LARGEST_LINE", 1000)
    path.parent.mkdir()
    path.write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match="line 1 is longer than 1000 bytes"):
        read(path)
    assert LARGEST_LINE > 1 << 20


def test_the_latest_is_the_newest_finished_one_of_its_kind(path):
    assert latest(path, "bench") is None
    run(path, n=1)
    run(path, n=2)
    run(path, kind="other", n=3)
    with pytest.raises(KeyboardInterrupt), recording(path, "bench", {}):
        raise KeyboardInterrupt
    append(path, {"schema": 1})  # says nothing of its kind
    assert latest(path, "bench")["results"] == [{"n": 2}]
    assert latest(path, "third") is None


# Where it ran


def test_the_fingerprint_names_neither_machine_nor_owner():
    found = machine()
    facts = {"system", "architecture", "processor", "cores", "memory_gib", "threads", "blas", "torch_build", "gpu"}
    assert set(found) == facts
    assert found["cores"] >= 1
    text = json.dumps(found)
    for private in (platform.node(), getpass.getuser(), os.path.expanduser("~"), os.getcwd()):
        assert len(private) < 4 or private not in text
    assert not any(str(fact).startswith(("/", "C:")) for fact in found.values())


def test_a_record_holds_no_absolute_path(path):
    run(path)
    text = path.read_text()
    assert str(path.parent) not in text
    assert os.getcwd() not in text
    assert len(platform.node()) < 4 or platform.node() not in text


def git(folder, *words):
    quiet = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "core.hooksPath=/dev/null",
    )
    done = subprocess.run(["git", *quiet, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, source, monkeypatch):
    """A repository that holds a copy of records.py, and the `source` function of that copy."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "src"
    home.mkdir()
    (home / "records.py").write_text((source / "records.py").read_text(), encoding="utf-8")
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "bench.jsonl").write_text("\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("copied_records", home / "records.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tmp_path, module.source


def test_the_commit_and_whether_code_differs_from_it(checkout):
    root, source = checkout
    assert source() == {"commit": None, "dirty": None}
    git(root, "init", "-q")
    assert source() == {"commit": None, "dirty": None}  # not committed yet
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    clean = {"commit": git(root, "rev-parse", "HEAD"), "dirty": False}
    assert source() == clean
    (root / "untracked.txt").write_text("x")
    assert source() == clean
    (root / "records" / "bench.jsonl").write_text("{}\n")  # an earlier run's record
    assert source() == clean
    with (root / "src" / "records.py").open("a") as file:
        file.write("# changed\n")
    assert source() == {**clean, "dirty": True}
    git(root, "add", "src")
    assert source() == {**clean, "dirty": True}


def test_a_copy_installed_into_somebody_elses_repository_has_no_commit(checkout):
    root, source = checkout
    git(root, "init", "-q")
    (root / ".gitignore").write_text("src/\n")
    git(root, "add", ".gitignore")
    git(root, "commit", "-q", "-m", "theirs")
    assert source() == {"commit": None, "dirty": None}


def test_without_git_there_is_no_commit(checkout, monkeypatch):
    _, source = checkout
    monkeypatch.setenv("PATH", "")
    assert source() == {"commit": None, "dirty": None}


def test_a_newer_schema_is_told_from_a_broken_record(path):
    path.parent.mkdir()
    path.write_text('{"schema":99,"kind":"bench"}\n')
    with pytest.raises(ValueError, match=r"written by a newer anyformer .*: update anyformer"):
        read(path)


def test_the_machine_says_what_torch_computes_with():
    import torch

    found = machine()
    assert found["threads"] == torch.get_num_threads()
    assert found["torch_build"] == torch.__version__
    assert found["blas"]
    assert found["gpu"] is None or isinstance(found["gpu"], str)


def test_machines_are_the_same_when_all_that_both_say_is():
    here = machine()
    older = {fact: value for fact, value in here.items() if fact not in ("threads", "blas", "torch_build", "gpu")}
    assert records.same_machine(here, older)
    assert not records.same_machine(here, {**here, "cores": -1})


def test_a_file_is_the_old_one_or_the_whole_new_one(path, monkeypatch):
    records.write_whole(path, "old")
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError("no space left on device")))
    with pytest.raises(OSError, match="no space"):
        records.write_whole(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == [path.name]
