"""`anyformer recommend`: from records of this machine, or from a quick run."""

import json

import pytest

from anyformer.cli import main
from anyformer.records import append, machine, read

SMALL = ["--heads", "2", "--head-dim", "8", "--budget", "60s"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def series(name, ratio, level="op"):
    interval = {"median": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
    return {
        "mechanism": name,
        "against": "softmax",
        "mode": "forward",
        "level": level,
        "causal": True,
        "lengths": [64],
        "ratios": [interval],
        "status": ["measured"],
        "values": {"mechanism": [interval], "against": [interval]},
        "crossover": {"kind": "none"},
    }


def remembered(path, rows, **changes):
    what = {"batch": 1, "heads": 2, "head_dim": 8, "dtype": "float32", "set": {}}
    record = {"schema": 1, "kind": "crossover", "what": what, "machine": machine(), "results": rows, "status": "done"}
    append(path, record | changes)


EVERYBODY = ["linear", *(f"performer:{kind}" for kind in ("positive", "hyperbolic", "relu", "exp")), "local"]


def test_records_of_this_machine_are_enough(elsewhere, capsys, monkeypatch):
    rows = [series(name, 2.0 + n) for n, name in enumerate(EVERYBODY)]
    rows += [series(f"lambda_layer:{kind}", 0.5, "layer") for kind in ("global", "local")]
    remembered(elsewhere / "crossover.jsonl", rows)
    monkeypatch.setattr("anyformer.cli.recommend.measure", None)  # and nothing is measured
    assert main(["recommend", "--length", "64", "--causal", *SMALL]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("At 64 tokens: take local: 7.00x [6.90, 7.10] as fast as softmax. Exact within its window")
    assert "linformer:headwise: it cannot be causal" in out
    assert err == ""
    assert main(["recommend", "--length", "64", "--causal", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["mechanism"] for row in found["ranked"]][:2] == ["local", "performer:exp"]
    assert [row["mechanism"] for row in found["ranked"]][6] == "softmax"


def test_softmax_alone_is_exact(capsys):
    assert main(["recommend", "--length", "64", "--exact-only", *SMALL]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("At 64 tokens: keep softmax")
    assert "linear: it is not exact" in out


def test_records_of_another_machine_or_size_are_not_believed(elsewhere, capsys, monkeypatch):
    path = elsewhere / "crossover.jsonl"
    remembered(path, [series("linear", 9.0)], machine={**machine(), "processor": "another"})
    remembered(
        path, [series("linear", 9.0)], what={"batch": 1, "heads": 99, "head_dim": 8, "dtype": "float32", "set": {}}
    )
    asked = []
    monkeypatch.setattr("anyformer.cli.recommend.measure", lambda args, names, *rest: asked.extend(names))
    assert main(["recommend", "--length", "64", "--causal", *SMALL]) == 0
    assert "linear" in asked
    assert capsys.readouterr().out.startswith("At 64 tokens: keep softmax")


def test_what_no_record_tells_is_measured_and_kept(elsewhere, capsys, monkeypatch):
    monkeypatch.setattr("anyformer.cli.recommend.candidates", lambda: ["softmax", "linear", "local"])
    words = ["recommend", "--length", "96", "--decode", "--memory", "1GiB", *SMALL, "--json"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "no record tells about softmax, linear, local: measuring" in err
    found = json.loads(out)
    assert {row["mechanism"] for row in found["ranked"]} == {"softmax", "linear", "local"}
    assert all(row["bytes"] > 0 for row in found["ranked"])
    (record,) = read(elsewhere / "crossover.jsonl")
    assert record["what"]["lengths"] == [96]
    assert main(words) == 0
    assert "no record" not in capsys.readouterr().err
    assert len(read(elsewhere / "crossover.jsonl")) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--length", "0"], "--length is between 1 and 1048576"),
        (["--length", "64", "--memory", "much"], "a size such as 2GiB"),
        (["--length", "64", "--budget", "0s"], "above 0"),
        (["--length", "64", "--decode", "--mode", "train"], "leave --mode train out"),
        ([], "--length"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(words, said, capsys):
    assert main(["recommend", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
