"""`anyformer report`: records in, one page out, and one line where that is not possible."""

import json

import pytest
import synthetic

from anyformer.cli import main
from anyformer.records import append


def row(**more):
    return synthetic.series("linear", "train", cost=lambda name, n: n**2 if name == "softmax" else 300.0 * n) | more


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "runs.jsonl"
    append(path, synthetic.record([row()]))
    return path


def refused(capsys, *words):
    assert main(["report", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("anyformer: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("anyformer: error: ").strip()


def test_the_page_is_written_and_its_answer_told(capsys, path, tmp_path):
    page = tmp_path / "deep" / "page.html"
    assert main(["report", str(path), "-o", str(page)]) == 0
    answer, where = capsys.readouterr().out.splitlines()
    assert answer.startswith("On this machine linear attention overtakes softmax at ")
    assert where == f"the page: {page}"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [file.name for file in page.parent.iterdir()] == ["page.html"]


def test_json_has_the_answers_and_is_alone(capsys, path, tmp_path):
    page = tmp_path / "page.html"
    assert main(["report", str(path), "-o", str(page), "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (err, told["page"]) == ("", str(page))
    (run,) = told["runs"]
    (answer,) = run["answers"]
    assert run["headline"] == f"On this machine {answer['sentence']}."
    assert (answer["mechanism"], answer["against"], answer["mode"], answer["causal"]) == (
        *("linear", "softmax", "train"),
        False,
    )
    assert (answer["kind"], answer["up_to"]) == ("measured", 4096)
    assert answer["low"] < answer["length"] < answer["high"]
    assert page.exists()


def test_several_files_are_one_page(capsys, path, tmp_path):
    other = tmp_path / "other.jsonl"
    append(other, synthetic.record([row()], machine={"processor": "another"}))
    append(other, {"schema": 1, "kind": "bench", "status": "done"})
    page = tmp_path / "page.html"
    assert main(["report", str(path), str(other), "-o", str(page)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert page.read_text(encoding="utf-8").count("<article ") == 2


def test_the_newest_finished_run_counts(capsys, path, tmp_path):
    never = {"kind": "none", "length": None, "low": None, "high": None, "up_to": 4096}
    append(path, synthetic.record([row(crossover=never)], started="2026-11-21T00:00:00+00:00"))
    append(path, synthetic.record([row()], started="2026-11-22T00:00:00+00:00", status="cancelled"))
    assert main(["report", str(path), "-o", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.startswith(
        "On this machine keep softmax: nothing overtakes it up to 4,096 tokens.\n"
    )


def test_a_page_that_cannot_be_written_is_told(capsys, path, tmp_path):
    assert refused(capsys, path, "-o", tmp_path).startswith(f"{tmp_path} cannot be written: ")
    told = refused(capsys, path, "-o", path / "page.html")
    assert told.startswith(f"{path / 'page.html'} cannot be written: ")
    assert told.endswith("give -o another place")
    assert [file.name for file in tmp_path.iterdir()] == ["runs.jsonl"]


def test_the_page_never_replaces_the_records(capsys, path, tmp_path):
    before = path.read_bytes()
    link = tmp_path / "link.html"
    link.symlink_to(path)
    for page in (path, link):
        assert "holds records, which the page would replace: give -o another name" in refused(capsys, path, "-o", page)
    assert path.read_bytes() == before


def test_an_old_page_stays_when_there_is_no_new_one(capsys, tmp_path):
    page, path = tmp_path / "page.html", tmp_path / "runs.jsonl"
    page.write_text("old")
    append(path, synthetic.record([], status="failed", error="MemoryError: out of it"))
    assert refused(capsys, path, "-o", page) == (
        "no finished run of the referee is recorded (the last one failed: MemoryError: out of it): "
        "run `anyformer crossover`"
    )
    assert page.read_text() == "old"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"schema":99,"kind":"crossover"}', "line 1 was written by a newer anyformer"),
        ("no json", "line 1 is no JSON"),
        ("[1, 2]", "line 1 is no record of schema 1"),
        ('{"schema":1,"kind":"bench"}', "no finished run of the referee is recorded"),
        ("", "no finished run of the referee is recorded"),
    ],
)
def test_a_file_that_holds_no_runs_is_refused(capsys, tmp_path, line, said):
    path = tmp_path / "runs.jsonl"
    path.write_text(line + "\n")
    assert said in refused(capsys, path, "-o", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_file_that_cannot_be_read_is_refused(capsys, tmp_path):
    assert (
        refused(capsys, tmp_path / "none.jsonl")
        == f"{tmp_path / 'none.jsonl'} cannot be read: No such file or directory"
    )
    assert refused(capsys, tmp_path) == f"{tmp_path} cannot be read: Is a directory"
    assert "the following arguments are required: records" in refused(capsys)


def test_without_the_extra_the_error_names_it(capsys, path, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    assert refused(capsys, path, "-o", tmp_path / "p.html") == "jinja2 is missing: pip install 'anyformer[report]'"


def test_an_ascii_console_gets_the_answer(python, path):
    done = python(
        "-m", "anyformer", "report", str(path), "-o", str(path.parent / "page.html"), PYTHONIOENCODING="ascii"
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"On this machine linear attention")
