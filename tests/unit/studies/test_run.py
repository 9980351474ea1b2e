"""The runner: what is done stays done, however a run ends."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from unit.studies import tiny

from anyformer.records import append, read
from anyformer.studies import Trial, _run

SLOW = tiny.trials("slow", 2)
KEYS = {(t.what["trial"], t.seed) for t in SLOW}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def steps():
    """(trial, seed, step, process) of each step that was done."""
    return [json.loads(line) for line in Path("log").read_text().splitlines()] if Path("log").exists() else []


def rows(status="done"):
    path = Path("records/tiny.jsonl")
    found = read(path) if path.exists() else []
    return [(r["what"]["trial"], r["seed"]) for r in found if r["status"] == status]


# In threads


@pytest.fixture
def run(monkeypatch):
    """Runs trials of a study in threads; returns what failed."""

    def go(todo, study=tiny, jobs=2, **options):
        monkeypatch.setattr(_run, "study", lambda name: study)
        told = []
        options = {"pool": ThreadPoolExecutor, "tell": lambda *words: told.append(words), **options}
        return _run.run("tiny", todo, Path("records/tiny.jsonl"), Path("work"), jobs, [1.0] * len(todo), **options)

    return go


def test_every_trial_has_its_record_and_no_folder_stays(run):
    todo = tiny.trials("quick", 2)
    assert run(todo) == []
    assert Counter(rows()) == Counter((t.what["trial"], t.seed) for t in todo)
    assert _run.missing(todo, _run.records(Path("records/tiny.jsonl"), todo)) == []
    assert [path.name for path in Path("work").iterdir()] == [".lock"]


def test_what_measures_time_runs_first_and_alone(run):
    running, most = set(), []

    def one(what, seed, folder):
        running.add((what["trial"], seed))
        time.sleep(0.05)
        most.append((what["part"], len(running)))
        running.discard((what["trial"], seed))
        return {}

    todo = tiny.trials("quick", 3)
    todo.append(Trial({**todo[2].what, "trial": "timing, d"}, 0))
    run(todo, SimpleNamespace(run=one), jobs=2)
    assert most[:2] == [("timing", 1), ("timing", 1)]
    assert {part for part, _ in most[2:]} == {"training"}
    assert {count for _, count in most} <= {1, 2}


def test_a_trial_that_fails_is_named_and_the_others_go_on(run):
    Path("fails").touch()
    failed = run(tiny.trials("quick", 2))
    assert sorted(failed) == ["count, a (seed 0): told to fail", "count, a (seed 1): told to fail"]
    assert Counter(rows()) == Counter([("count, b", 0), ("count, b", 1), ("timing, c", 0)])
    assert Counter(rows("failed")) == Counter([("count, a", 0), ("count, a", 1)])


def test_a_record_counts_for_its_own_parameters_only(run):
    path, todo = Path("records/tiny.jsonl"), tiny.trials("quick", 1)
    run(todo)
    changed = [Trial({**t.what, "steps": 4}, t.seed) for t in todo]
    assert _run.missing(changed, _run.records(path, changed)) == changed
    assert len({_run.folder(Path("work"), t) for t in [*todo, *changed]}) == 2 * len(todo)
    run(tiny.trials("slow", 1)[2:])  # the same name in another preset hides nothing
    assert _run.missing(todo, _run.records(path, todo)) == []


def test_only_finished_records_count():
    (trial, *_), path = tiny.trials("quick", 1), Path("records/tiny.jsonl")
    row = {"schema": 1, "kind": "study", "what": trial.what, "seed": 0, "results": [{}]}
    for status in ("failed", "cancelled", "running"):
        append(path, {**row, "status": status})
    append(path, {**row, "status": "done", "kind": "bench"})
    append(path, {"schema": 1, "kind": "study"})
    assert _run.records(path, [trial]) == []
    append(path, {**row, "status": "done"})
    assert len(_run.records(path, [trial])) == 1


def test_the_time_left_shrinks_and_follows_the_trials_done(run):
    told = []
    run(tiny.trials("quick", 1), tell=lambda text, left: told.append((text, left)))
    assert told[0] == ("0 of 3 trials done, now: timing, c (seed 0)", 2.0)  # two seconds shared by two, and one alone
    assert told[-1][0].startswith("2 of 3 trials done") or told[-1][0].startswith("1 of 3 trials done")
    assert told[-1][1] < 1.0  # they took less than the second that was expected of each


def test_a_trial_takes_as_long_as_with_another_seed():
    todo = tiny.trials("quick", 2)
    done = [{"what": todo[0].what, "seed": 0, "results": [{"seconds": 7.0}]}]
    done += [{"what": todo[1].what, "seed": 0, "results": [{"seconds": 9.0, "diverged": True}]}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_run, "study", lambda name: tiny)
        found = dict(zip([t.name for t in todo], _run.estimates("tiny", todo, done), strict=True))
    assert found["count, a (seed 1)"] == (7.0, "so long with another seed")
    assert found["count, b (seed 1)"] == (0.0, "by arithmetic")  # a run that diverged ended early


def test_two_runs_do_not_share_a_folder(run):
    with _run.only_one(Path("work")), pytest.raises(ValueError, match="another run is at work in work: wait for it"):
        run(tiny.trials("quick", 1))
    assert rows() == []


# In processes, some of which are killed


@pytest.fixture(scope="module")
def package(tmp_path_factory, source):
    """The package with one more study."""
    root = tmp_path_factory.mktemp("package")
    shutil.copytree(source, root / "anyformer", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(tiny.__file__, root / "anyformer" / "studies" / "tiny.py")
    return root


@pytest.fixture
def study(package):
    """Starts `anyformer study tiny` in a process of its own."""
    started = []

    def start(*words):
        command = [sys.executable, "-m", "anyformer", "study", "tiny", "--preset", "slow", "--seeds", "2", *words]
        environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(condition, process=None):
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)


def alive(process_id):
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_ends_well(study, stops):
    """The same command does what is left, and each stop cost at most the steps that were running."""
    process = study("--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    (verdict,) = json.loads(out)["verdicts"]
    assert (verdict["verdict"], verdict["because"]) == ("reproduced", "4 ended")
    assert Counter(rows()) == Counter(dict.fromkeys(KEYS, 1))
    counted = Counter((trial, seed, step) for trial, seed, step, _ in steps())
    assert counted.keys() == {(*key, step) for key in KEYS for step in range(12)}
    assert sum(counted.values()) - len(counted) <= 2 * stops


def test_a_killed_worker_costs_one_step(study):
    process = study()
    wait_for(lambda: {"count, a", "count, b"} <= {trial for trial, *_ in steps()}, process)
    time.sleep(0.4)
    os.kill(steps()[-1][3], signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 2
    assert "a worker was killed, perhaps for want of memory; what is done is kept" in err
    assert "Traceback" not in err
    assert ("timing, c", 0) in rows()
    assert_ends_well(study, stops=1)


def test_a_killed_parent_takes_its_workers_along(study):
    process = study()
    wait_for(lambda: len(steps()) > 12 + random.Random(time.time_ns()).randrange(12), process)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(alive(worker) for *_, worker in steps()))
    assert len(rows()) < len(KEYS)
    assert_ends_well(study, stops=1)


def test_ctrl_c_keeps_what_is_done(study):
    process = study()
    wait_for(lambda: {"count, a", "count, b"} <= {trial for trial, *_ in steps()}, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "interrupted: what is done is kept; the same command goes on"
    assert "Traceback" not in err
    assert {trial for trial, _ in rows("cancelled")} <= {"count, a", "count, b"}
    assert 1 <= len(rows("cancelled")) <= 2  # a worker that was not ready yet has begun nothing
    assert_ends_well(study, stops=1)


def test_ctrl_c_before_the_first_trial_begins_is_heard(study):
    process = study()
    wait_for(Path(".anyformer/tiny/.lock").exists, process)
    time.sleep(random.Random(time.time_ns()).random())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert len(steps()) < 12  # not even the first trial was ended
    assert_ends_well(study, stops=1)


def test_ctrl_c_in_threads_waits_for_what_runs_and_starts_nothing_more(run):
    once = iter([KeyboardInterrupt])

    def tell(text, left):
        if text.startswith("1 of") and (error := next(once, None)):
            raise error

    with pytest.raises(KeyboardInterrupt):
        run(tiny.trials("quick", 2), tell=tell)
    assert 1 <= len(rows()) <= 3
