"""Runs the trials of a study that are missing, several at once, and keeps whatever is done however it ends."""

import fcntl
import hashlib
import multiprocessing
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from anyformer.records import read, recording
from anyformer.studies import Row, Trial, finished, study

Tell = Callable[[str, float | None], None]  # what is going on, and the seconds left

ASKED = threading.Event()  # in a worker: Ctrl-C came before a trial could take it


def executor(jobs: int) -> Executor:
    """Where trials run: processes of this machine. Any other Executor, such as a cluster's, can take its place."""
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=worker)


def worker() -> None:
    """Ctrl-C reaches the parent alone, which passes it on once; and no worker outlives its parent."""
    os.setpgrp()
    signal.signal(signal.SIGINT, lambda *_: ASKED.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def one(name: str, trial: Trial, record: Path, folder: Path, threads: int | None) -> float:
    """One trial and its record; returns its seconds. Ctrl-C stops it after the step it is in."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    began = perf_counter()
    ours = threading.current_thread() is threading.main_thread()
    if ours:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if ASKED.is_set():
            raise KeyboardInterrupt
        with recording(record, "study", trial.what, seed=trial.seed) as row:
            row["results"] = [study(name).run(trial.what, trial.seed, folder)]
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
    shutil.rmtree(folder, ignore_errors=True)
    return perf_counter() - began


def records(path: Path, trials: Sequence[Trial]) -> list[Row]:
    """Those of finished trials that are among these, with the same parameters."""
    wanted = {trial.key for trial in trials}
    rows = finished(read(path)) if path.exists() else []
    return [r for r in rows if Trial(r["what"], r["seed"]).key in wanted]


def missing(trials: Sequence[Trial], done: Sequence[Row]) -> list[Trial]:
    there = {Trial(r["what"], r["seed"]).key for r in done}
    return [trial for trial in trials if trial.key not in there]


def folder(work: Path, trial: Trial) -> Path:
    """Of a trial's checkpoints; another one if any parameter changes."""
    readable = re.sub(r"\W+", "-", f"{trial.what['preset']} {trial.what['trial']} seed {trial.seed}")
    return work / f"{readable}-{hashlib.sha256(trial.key.encode()).hexdigest()[:8]}"


def estimates(name: str, todo: Sequence[Trial], done: Sequence[Row]) -> list[tuple[float, str]]:
    """Seconds of each and how that is known: the same trial took so long with another seed, or the study says."""
    took = {r["what"]["trial"]: r["results"][0].get("seconds") for r in done if not r["results"][0].get("diverged")}
    asked = study(name).seconds
    return [(s, "so long with another seed") if (s := took.get(t.what["trial"])) else asked(t.what) for t in todo]


def run(
    name: str,
    todo: Sequence[Trial],
    record: Path,
    work: Path,
    jobs: int,
    expected: Sequence[float],
    tell: Tell,
    pool: Callable[[int], Executor] = executor,
) -> list[str]:
    """First the trials that measure time, one by one, then the others, `jobs` at once; returns what failed and why."""
    waiting = [(trial, guess) for trial, guess in zip(todo, expected, strict=True)]
    waiting.sort(key=lambda one: not one[0].alone)
    asked, done, took, guessed = False, 0, 0.0, 0.0
    failed: list[str] = []
    running: dict[Future[float], tuple[Trial, float]] = {}
    with only_one(work), pool(jobs) as workers:
        while waiting or running:
            try:
                while waiting and len(running) < (
                    1 if any(t.alone for t, _ in (waiting[0], *running.values())) else jobs
                ):
                    trial, _ = waiting[0]
                    threads = 1 if jobs > 1 and not trial.alone else None
                    with uninterrupted():
                        job = workers.submit(one, name, trial, record, folder(work, trial), threads)
                        running[job] = waiting.pop(0)
                left = sum(guess / (1 if trial.alone else jobs) for trial, guess in [*waiting, *running.values()])
                now = "; ".join(trial.name for trial, _ in running.values())
                tell(f"{done} of {len(todo)} trials done, now: {now}", left * (took / guessed if guessed else 1.0))
                ready, _ = wait(running, timeout=2.0, return_when=FIRST_COMPLETED)
                for job in ready:
                    trial, guess = running.pop(job)
                    error = job.exception()
                    if error is None:
                        done, took, guessed = done + 1, took + job.result(), guessed + guess
                    elif isinstance(error, KeyboardInterrupt | BrokenProcessPool):
                        raise error
                    else:
                        failed.append(f"{trial.name}: {error}")
            except BrokenProcessPool:
                if not asked:
                    raise ChildProcessError(
                        "a worker was killed, perhaps for want of memory; what is done is kept: run the same again to "
                        "go on, with fewer --jobs if memory is short"
                    ) from None
            except KeyboardInterrupt:
                asked, waiting = True, []
                for child in multiprocessing.active_children():
                    if child.pid is not None:
                        os.kill(child.pid, signal.SIGINT)
    if asked:
        raise KeyboardInterrupt
    return failed


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits; in a process that is started here, until `worker` has it ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def only_one(work: Path) -> Iterator[None]:
    """Two runs would take each other's checkpoints."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another run is at work in {work}: wait for it, or give --work another folder") from None
        yield
