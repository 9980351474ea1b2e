"""`anyformer study`: what it runs, says and refuses."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from unit.studies import tiny

from anyformer.cli import main
from anyformer.records import read
from anyformer.studies import _run

QUICK = ["study", "tiny", "--preset", "quick", "--seeds", "2"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A study that takes no time, in threads."""
    monkeypatch.chdir(tmp_path)
    real = _run.study

    def study(name):
        return tiny if name == "tiny" else real(name)

    monkeypatch.setattr("anyformer.cli.study.study", study)
    monkeypatch.setattr(_run, "study", study)
    monkeypatch.setattr(_run, "run", partial(_run.run, pool=ThreadPoolExecutor))
    return tmp_path


def steps():
    return len(Path("log").read_text().splitlines()) if Path("log").exists() else 0


def test_studies_are_listed(capsys):
    assert main(["study"]) == 0
    assert capsys.readouterr().out.startswith("copy  Does linear attention learn to copy")
    assert main(["study", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["copy"].startswith("Does linear")


def test_an_answer_is_a_block_for_each_claim(capsys):
    assert main(QUICK) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1  reproduced",
        "    Counting ends. (000: always)",
        "    4 ended",
        "",
        "tiny, preset quick: 1 reproduced",
    ]
    assert len(read(Path("records/tiny.jsonl"))) == 5


def test_on_a_terminal_the_verdict_stands_out_and_text_is_folded_within_its_block(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("TERM", "xterm")
    assert main(QUICK) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "\x1b[1m1  reproduced\x1b[0m"
    assert others[:3] == ["    Counting ends. (000:", "    always)", "    4 ended"]


def test_what_is_done_is_not_done_again(capsys):
    assert main([*QUICK, "--seeds", "1"]) == 0
    assert "not finished: count, a (seed 1); count, b (seed 1)" in capsys.readouterr().out
    before = steps()
    assert main(QUICK) == 0
    assert steps() == before + 6
    assert main([*QUICK, "--json"]) == 0
    assert steps() == before + 6
    found = json.loads(capsys.readouterr().out.rpartition("quick: 1 reproduced\n")[2])
    assert (found["study"], found["preset"], found["failed"]) == ("tiny", "quick", [])
    assert [row["verdict"] for row in found["verdicts"]] == ["reproduced"]


def test_a_dry_run_runs_and_writes_nothing(capsys, elsewhere):
    assert main([*QUICK, "--preset", "slow", "--dry-run"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["trials", "seconds", "kind", "source"],
        ["2", "4", "count,", "a", "by", "arithmetic"],
        ["2", "4", "count,", "b", "by", "arithmetic"],
        ["1", "2", "timing,", "c", "by", "arithmetic"],
        ["5", "trials", "would", "run", "and", "0", "are", "done:", "0:00:05", "with", "2", "jobs."],
    ]
    assert list(elsewhere.iterdir()) == []


def test_a_dry_run_in_json_has_every_trial_and_where_its_time_is_from(capsys):
    assert main([*QUICK, "--seeds", "1"]) == 0
    capsys.readouterr()
    before = steps()
    assert main([*QUICK, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "done": 3,
        "seconds": 0,
        "trials": [
            {"trial": f"count, {name}", "seed": 1, "seconds": 0.0, "source": "by arithmetic"} for name in ("a", "b")
        ],
    }
    assert steps() == before
    assert main([*QUICK, "--preset", "slow", "--seeds", "1"]) == 0
    capsys.readouterr()
    assert main([*QUICK, "--preset", "slow", "--dry-run"]) == 0
    assert "so long with another seed" in capsys.readouterr().out


def test_a_trial_that_fails_is_told_and_the_rest_is_judged(capsys):
    Path("fails").touch()
    assert main(QUICK) == 1
    out, err = capsys.readouterr()
    assert "failed: count, a (seed 0): told to fail\n" in err
    assert "not finished: count, a (seed 0); count, a (seed 1)" in out
    Path("fails").unlink()
    assert main(QUICK) == 0


def test_ctrl_c_is_130(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(_run, "run", interrupted)
    assert main(QUICK) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("interrupted: what is done is kept; the same command goes on\n")


def test_a_page_is_written(elsewhere, capsys, monkeypatch):
    monkeypatch.setattr("anyformer.reports.studies.page", lambda name, *_: f"<html>{name}")
    assert main([*QUICK, "--html", "new/page.html"]) == 0
    assert (elsewhere / "new" / "page.html").read_text() == "<html>tiny"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["study", "cpoy"], "there is no study 'cpoy'; did you mean 'copy'?; there are copy"),
        (
            ["study", "copy", "--preset", "labtop"],
            "copy has no preset 'labtop'; did you mean 'laptop'?; it has smoke, ",
        ),
        ([*QUICK, "--seeds", "0"], "--seeds must be at least 1, not 0"),
        ([*QUICK, "--jobs", "-1"], "--jobs must be at least 1, not -1"),
        ([*QUICK, "--seeds", "few"], "invalid int value: 'few'"),
        ([*QUICK, "--record", "."], ". is a folder: name a file in it"),
        ([*QUICK, "--html", "."], ". is a folder: name a file in it"),
        ([*QUICK, "--work", "file"], "file is a file: name a folder"),
        ([*QUICK, "--record", "file/in/it"], "file/in/it cannot be written: choose another place"),
        (["study", "--dry-run"], "need the name of a study: copy"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence_before_anything_runs(words, said, capsys, elsewhere):
    (elsewhere / "file").touch()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert [path.name for path in elsewhere.iterdir()] == ["file"]


@pytest.mark.parametrize("place", ["--record", "--work", "--html"])
def test_an_unwritable_place_is_refused_first(place, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "shut")
    Path("shut").mkdir()
    assert main([*QUICK, place, "shut/new"]) == 2
    assert capsys.readouterr().err == "anyformer: error: shut/new cannot be written: choose another place\n"
    assert steps() == 0


def test_a_page_needs_what_draws_it(capsys, monkeypatch):
    monkeypatch.setattr("anyformer.cli._arguments.find_spec", lambda name: None)
    assert main([*QUICK, "--html", "page.html"]) == 2
    assert "--html needs matplotlib and jinja2: pip install 'anyformer[report]'" in capsys.readouterr().err
    assert steps() == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"schema":99}', "written by a newer anyformer"),
        ("{]", "is no JSON: restore the file from git"),
        ("[1]", "is no record of schema 1"),
    ],
)
def test_a_record_that_cannot_be_read_is_one_sentence(line, said, capsys):
    Path("records").mkdir()
    Path("records/tiny.jsonl").write_text(line + "\n")
    assert main(QUICK) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert Path("records/tiny.jsonl").read_text() == line + "\n"


def test_another_run_in_the_same_folder_is_refused(capsys):
    with _run.only_one(Path(".anyformer/tiny")):
        assert main(QUICK) == 2
    assert "another run is at work in .anyformer/tiny: wait for it" in capsys.readouterr().err
