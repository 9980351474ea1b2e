"""What all verbs share: help, exit status, messages of one line, and whatever stands at the other end."""

import io
import subprocess
import sys

import pytest

import anyformer as af
from anyformer import cli
from anyformer.cli import main

VERBS = sorted(cli.verbs())


def test_every_verb_is_a_file_with_help():
    assert {"laws", "list", "show"} <= set(VERBS)


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_the_verbs(capsys, argv):
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: anyformer")
    assert all(
        f"    {verb}" in [line[:4] + line.split()[0] for line in out.splitlines() if line.strip()] for verb in VERBS
    )


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_that_begins_with_its_docstring(capsys, verb):
    assert main([verb, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(f"usage: anyformer {verb}")
    assert "--json" in out
    module = sys.modules[f"anyformer.cli.{verb}"]
    assert module.__doc__.partition("\n")[0] in out


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"anyformer {af.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["lsit"], "there is no verb 'lsit'; did you mean 'list'?; see `anyformer --help`"),
        (["zzz"], "there is no verb 'zzz'; see `anyformer --help`"),
        (["list", "extra"], "unrecognized arguments: extra"),
        (["list", "--colour"], "unrecognized arguments: --colour"),
        (["--json", "list"], "unrecognized arguments: --json"),
        (["list", "--idea", "kernl"], "there is no idea 'kernl'; did you mean 'kernel'?; the ideas are exact, kernel"),
        (["show"], "the following arguments are required: mechanism; see `anyformer show --help`"),
        (["show", "softmx"], "there is no mechanism 'softmx'; did you mean 'softmax'?"),
        (["show", "softmax:fast"], "softmax has no variant 'fast'"),
        (["show", "local", "--tokens", "0"], "--tokens must be at least 1, not 0"),
        (["show", "local", "--tokens", "few"], "invalid int value: 'few'"),
        (["show", "local", "--set", "window"], "--set takes NAME=VALUE, not 'window'"),
        (["show", "local", "--set", "window=0"], "window must be at least 1, not 0"),
        (["show", "local", "--set", "window=wide"], "window is a whole number, not 'wide'"),
        (["show", "local", "--set", "windo=3"], "local has no option 'windo'; did you mean 'window'?"),
        (["show", "local", "--set", "heads=3"], "heads is the example's"),
        (["laws", "softmx"], "there is no mechanism 'softmx'; did you mean 'softmax'?"),
        (["laws", "softmax:fast"], "softmax has no variant 'fast'"),
        (["laws", "softmx:fast"], "did you mean 'softmax'?"),
        (["laws", "--law", "casual"], "there is no law 'casual'; did you mean 'causal'?; the laws are formula, causal"),
        (["laws", "no_such_module:make"], "cannot import no_such_module"),
        (["laws", "json:no_such_function"], "json has no 'no_such_function'"),
        (["laws", "softmax", "--causal"], "--causal describes package.module:factory"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_in_one_line(capsys, argv, said):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("anyformer: error: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_malformed_card_is_told_in_one_line(capsys, drop):
    path = drop("broken", "class Broken:\n    card = Card(year=YEAR)\n")
    assert main(["list"]) == 2
    assert capsys.readouterr().err == f"anyformer: error: {path}: the card's 'year' must be a literal\n"


def test_ctrl_c_is_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("anyformer.cli.list.run", interrupted)
    assert main(["list"]) == 130


def test_the_working_folder_is_importable_only_meanwhile(capsys):
    before = list(sys.path)
    main(["list", "--json"])
    main(["lsit"])
    assert sys.path == before
    assert capsys.readouterr().out


def test_the_exit_status_reaches_the_shell(python):
    assert python("-m", "anyformer", "list").returncode == 0
    assert python("-m", "anyformer", "lsit").returncode == 2


def test_an_ascii_console_gets_ascii(python, monkeypatch):
    done = python("-m", "anyformer", "list", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert b" yes " in done.stdout
    console = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", console)
        assert main(["show", "local"]) == 0
    console.seek(0)
    assert "##" in console.read()


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["--help"]])
def test_a_pipe_that_closes_is_no_error(words):
    running = subprocess.Popen(
        [sys.executable, "-m", "anyformer", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    running.stdout.close()  # like `| head -1`, which has read enough
    assert running.stderr.read() == b""
    running.stderr.close()
    assert running.wait(timeout=60) == 0


def test_developers_get_the_whole_story(python):
    done = python("-X", "dev", "-W", "ignore", "-m", "anyformer", "lsit")
    assert done.returncode == 1
    assert b"Traceback" in done.stderr
