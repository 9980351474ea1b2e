"""`anyformer crossover`: what it measures, keeps, prints and refuses."""

import json

import pytest

from anyformer.cli import main
from anyformer.cli.crossover import ahead, cell
from anyformer.measure.live import Live
from anyformer.records import append, read

SMALL = ["--heads", "2", "--head-dim", "8", "--budget", "60s", "--lengths", "32,64"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run with everything on, and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    words = ["crossover", "linear", "local", "lambda_layer", *SMALL, "--mode", "forward,train,decode,memory"]
    words += ["--set", "local.window=16", "--record", str(folder / "runs.jsonl"), "--json", str(folder / "out.json")]
    assert main(words) == 0
    (record,) = read(folder / "runs.jsonl")
    return record, json.loads((folder / "out.json").read_text())


def test_every_mode_and_order_has_its_row(finished):
    record, out = finished
    found = {(r["mechanism"], r["against"], r["mode"], r["level"], r["causal"]) for r in out["rows"]}
    expected = set()
    for name in ("linear", "local"):
        for mode in ("forward", "train", "forward memory", "train memory"):
            expected |= {(name, "softmax", mode, "op", causal) for causal in (False, True)}
        expected |= {(name, "softmax", "decode", "op", True), (name, "softmax", "decode memory", "op", True)}
        expected.add((name, "softmax, nothing cached", "decode", "op", True))
    for mode in ("forward", "train", "forward memory", "train memory"):
        expected |= {("lambda_layer", "softmax", mode, "layer", causal) for causal in (False, True)}
    assert found == expected
    assert record["status"] == "done"


def test_a_row_has_all_that_a_reader_needs(finished):
    _, out = finished
    for row in out["rows"]:
        assert {32, 64} <= set(row["lengths"])
        for column in ("ratios", "status", "over_floor"):
            assert len(row[column]) == len(row["lengths"])
        for ratio in row["ratios"]:
            assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
        assert row["crossover"]["kind"] in ("measured", "from the first length", "none", "inconclusive")
        assert row["left_out"] == []
        timed = row["mode"] in ("forward", "train")
        assert all((over is not None) is timed for over in row["over_floor"])
        if timed:
            assert all(over["median"] > 1 for over in row["over_floor"])  # nobody is faster than the machine


def test_the_record_has_the_rounds_and_the_machine(finished):
    record, out = finished
    assert out["machine"] == record["machine"]
    assert {"processor", "cores", "memory_gib", "threads", "blas", "torch_build", "gpu"} <= record["machine"].keys()
    for row in out["rows"]:
        order = "causal" if row["causal"] else "full"
        for length in row["lengths"]:
            taken = record["repeats"][f"{row['mode']}, {order}, {row['level']}, {length}"]
            assert len(taken[row["mechanism"]]) == len(taken[row["against"]])
    assert record["what"]["set"] == {"local": {"window": 16}}
    pictured = {row["mechanism"]: row["matrix"] for row in record["results"] if "matrix" in row}
    assert pictured.keys() == {"linear", "local"}
    assert all(sum(row) == pytest.approx(1, abs=0.01) for row in pictured["linear"]["weights"])


def test_a_table_on_stdout_and_a_page_beside_it(capsys, elsewhere):
    pytest.importorskip("matplotlib")
    assert main(["crossover", "local", *SMALL, "--mode", "memory", "--causal"]) == 0
    out, err = capsys.readouterr()
    heading, *rows = out.splitlines()
    assert heading.split() == ["mechanism", "mode", "order", "32", "64", "ahead", "of", "it"]
    assert [row.split()[:4] for row in rows[:2]] == [
        ["local", "forward", "memory", "causal"],
        ["local", "train", "memory", "causal"],
    ]
    assert "the page: crossover.html" in err
    assert "<svg" in (elsewhere / "crossover.html").read_text()
    assert len(read(elsewhere / "crossover.jsonl")) == 1


def test_an_interrupted_run_is_kept_and_gone_on_with(capsys, monkeypatch, elsewhere):
    words = ["crossover", "local", *SMALL, "--mode", "forward", "--causal", "--json"]
    measure, calls = Live.measure, []

    def interrupted(self, cell, *rest):
        calls.append(cell.length)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(self, cell, *rest)

    monkeypatch.setattr(Live, "measure", interrupted)
    assert main(words) == 130
    out, err = capsys.readouterr()
    assert "--resume goes on" in err
    assert [row["lengths"] for row in json.loads(out)["rows"]] == [[32]]
    (first,) = read(elsewhere / "crossover.jsonl")
    assert first["status"] == "cancelled"

    assert main([*words, "--resume"]) == 0
    second = read(elsewhere / "crossover.jsonl")[1]
    assert second["status"] == "done"
    assert second["resumed"] == first["started"]
    assert second["repeats"]["forward, causal, op, 32"] == first["repeats"]["forward, causal, op, 32"]
    (row,) = (row for row in second["results"] if "crossover" in row)
    assert {32, 64} <= set(row["lengths"])
    assert row["over_floor"][0] is not None  # of the part that was measured before, too
    capsys.readouterr()
    assert main([*words, "--resume"]) == 2
    assert "no interrupted run of this request" in capsys.readouterr().err


def test_no_number_for_what_breaks_a_law(drop, capsys, elsewhere):
    path = drop()
    path.write_text(
        path.read_text().replace(
            "attend = formula", "attend = lambda self, q, k, v, keep=None: self.formula(q, k, v, keep) * 1.001"
        )
    )
    assert main(["crossover", "mean_of_all", "local", *SMALL, "--mode", "memory", "--no-causal", "--json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert {row["mechanism"] for row in out["rows"]} == {"local"}
    (failed,) = out["not_measured"]
    assert failed["mechanism"] == "mean_of_all"
    assert failed["failed"].startswith("formula: ")
    assert not any("mean_of_all" in taken for taken in read(elsewhere / "crossover.jsonl")[0]["repeats"].values())


def test_a_mechanism_against_itself_has_no_crossover(capsys):
    words = [
        "crossover",
        "softmax",
        "--lengths",
        "64:256",
        "--heads",
        "2",
        "--mode",
        "forward",
        "--causal",
        "--budget",
        "8s",
    ]
    assert main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["crossover"]["kind"] in ("none", "inconclusive")


def test_who_cannot_do_it_is_named_with_the_reason(capsys):
    assert main(["crossover", "linformer", "local", *SMALL, "--mode", "memory", "--causal", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert {row["mechanism"] for row in out["rows"]} == {"local"}
    (skipped,) = out["not_measured"]
    assert skipped["mechanism"] == "linformer"
    assert skipped["skipped"].startswith("it cannot be causal; these can: ")


def test_compiled_needs_a_claim(capsys):
    assert main(["crossover", "local", *SMALL, "--mode", "memory", "--causal", "--compile", "--json"]) == 0
    skipped = json.loads(capsys.readouterr().out)["not_measured"]
    assert [row["mechanism"] for row in skipped] == ["local, compiled"]
    assert "does not claim torch.compile" in skipped[0]["skipped"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["linaer"], "no mechanism 'linaer'; did you mean 'linear'?"),
        (["--against", "softmx"], "did you mean 'softmax'?"),
        (["--lengths", "512:128"], "reversed: write 128:512"),
        (["--lengths", "0:128"], "at least 1"),
        (["--lengths", "128:9999999"], "go up to 1048576"),
        (["--lengths", "many"], "takes A:B, or a list"),
        (["--budget", "0s"], "above 0"),
        (["--budget", "soon"], "a time such as 90s"),
        (["--mode", "foward"], "did you mean 'forward'?"),
        (["--mode", ""], "takes one or more of"),
        (["--level", "modle"], "did you mean 'model'?"),
        (["--mode", "decode", "--no-causal"], "decoding is causal"),
        (["--heads", "0"], "--heads must be at least 1"),
        (["--dtype", "float8"], "it takes float32"),
        (["--device", "tpu"], "--device tpu is not to be had here"),
        (["--set", "local=7"], "NAME.OPTION=VALUE"),
        (["--set", "local.heads=7"], "heads is the same for all"),
        (["--set", "loacl.window=7"], "did you mean 'local'?"),
        (["--record", "."], "is a folder"),
        (["--html", "."], "is a folder"),
        (["--resume"], "leave --resume out"),
        (["--json", "linear"], "name mechanisms before the options"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence_before_anything_is_measured(words, said, capsys, elsewhere):
    assert main(["crossover", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert not (elsewhere / "crossover.jsonl").exists()


def test_an_unwritable_place_is_refused_first(elsewhere, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    assert main(["crossover", "local", *SMALL]) == 2
    assert "cannot be written: choose another place" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"), [('{"schema":99}', "newer anyformer"), ("{]", "is no JSON"), ('{"schema":1}', "kind")]
)
def test_a_record_that_cannot_be_read_is_one_sentence(line, said, capsys, elsewhere):
    (elsewhere / "crossover.jsonl").write_text(line + "\n")
    assert main(["crossover", "local", *SMALL, "--resume"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    if said != "kind":
        assert said in err


def test_resuming_takes_up_nothing_of_another_request(elsewhere, capsys):
    append(
        elsewhere / "crossover.jsonl",
        {"schema": 1, "kind": "crossover", "status": "cancelled", "what": {"names": ["linear"]}},
    )
    assert main(["crossover", "local", *SMALL, "--resume"]) == 2


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"kind": "measured", "length": 310.2, "low": 290.4, "high": 340.0, "up_to": 4096}, "from 310\n[290, 340]"),
        ({"kind": "none", "length": None, "low": None, "high": None, "up_to": 4096}, "never up to 4096"),
        ({"kind": "from the first length", "length": 128.0, "up_to": 4096}, "from the first length on"),
        ({"kind": "inconclusive", "length": None, "low": None, "high": None, "up_to": 4096}, "too noisy to tell"),
    ],
)
def test_crossovers_in_words(found, words):
    assert ahead(found) == words


def test_cells_in_words():
    assert cell({"median": 1.234, "low": 1.1, "high": 1.4}, "measured") == "1.23\n1.10-1.40"
    assert cell({"median": 2.0, "low": 2.0, "high": 2.0}, "measured") == "2.00"
    assert cell({"median": 1.2, "low": 0.5, "high": 2.5}, "inconclusive").startswith("?")
