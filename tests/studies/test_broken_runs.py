"""Runs that meet damaged files, other programs and signals: one line, and the others go on."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from bbh_studies.cli import app, entry_point
from bbh_studies.run.lock import FILE_NAME, FolderLock, InUseError
from bbh_studies.run.processes import Children

runner = CliRunner()
TWO = ("run", "digits", "--method", "map", "--seed", "0", "--seed", "1", "--epochs", "1")


def run(tmp_path, *options):
    return runner.invoke(app, [*TWO, "--device", "cpu", "--out", str(tmp_path), *options])


def folder(tmp_path, seed):
    return tmp_path / "digits" / "corrected" / f"map-{seed}"


@pytest.mark.parametrize(
    ("name", "problem"),
    [("checkpoint.pt", "truncated or damaged"), ("record.json", "no record of a run")],
)
def test_a_damaged_file_is_a_failure_of_its_own_run_only(tmp_path, name, problem):
    folder(tmp_path, 0).mkdir(parents=True)
    (folder(tmp_path, 0) / name).write_bytes(b"damaged")
    (folder(tmp_path, 0) / ".record.json.abc.tmp").write_bytes(b"half")
    result = run(tmp_path, "--resume")
    assert result.exit_code == 1
    assert "digits 1/2 MAP, seed 0: failed, " in result.output
    assert problem in result.output
    assert "digits 2/2 MAP, seed 1: err" in result.output
    assert os.listdir(folder(tmp_path, 0)) == [name]  # not touched; half a file is removed
    assert (folder(tmp_path, 1) / "record.json").exists()


def test_a_mistake_in_a_program_is_shown_and_the_others_go_on(tmp_path, monkeypatch, caplog):
    import bbh_studies.problems.images.train_and_measure as module

    real, calls = module.measure, []

    def broken(*arguments):
        calls.append(1)
        return real(*arguments) if len(calls) > 1 else {}["forgotten"]

    monkeypatch.setattr(module, "measure", broken)
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "seed 0: failed, 'forgotten'" in result.output
    assert "seed 1: err" in result.output
    assert "KeyError: 'forgotten'" in caplog.text


class TestLock:
    def test_the_second_program_is_refused_and_nothing_is_touched(self, tmp_path):
        with FolderLock(folder(tmp_path, 1)):
            (folder(tmp_path, 1) / "record.json").write_text("of the first")
            result = run(tmp_path)
            assert isinstance(result.exception, InUseError)
            assert "another program writes to" in str(result.exception)
            assert not folder(tmp_path, 0).exists()
            assert (folder(tmp_path, 1) / "record.json").read_text() == "of the first"

    def test_it_leaves_no_trace(self, tmp_path):
        (tmp_path / "there").mkdir()
        for place in (tmp_path / "there", tmp_path / "new" / "one"):
            with FolderLock(place):
                assert os.listdir(place) == [FILE_NAME]
        assert [*tmp_path.rglob("*")] == [tmp_path / "there"]

    def test_one_after_the_other(self, tmp_path):
        first, second = FolderLock(tmp_path), FolderLock(tmp_path)
        first.take()
        with pytest.raises(InUseError):
            second.take()
        first.release()
        second.take()
        with pytest.raises(InUseError):
            first.take()
        second.release()

    def test_a_killed_program_holds_no_lock(self, tmp_path):
        code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
        code += "; print('locked', flush=True); time.sleep(600)"
        command = [sys.executable, "-c", code, str(tmp_path / FILE_NAME)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"locked\n"
            with pytest.raises(InUseError):
                FolderLock(tmp_path).take()
            other.kill()
        with FolderLock(tmp_path):
            pass


class TestSignals:
    def test_sigterm_ends_a_command_as_ctrl_c_does(self, tmp_path):
        words = [*TWO, "--device", "cpu", "--out", str(tmp_path)]
        command = [sys.executable, "-m", "bbh_studies", *words]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            while not (folder(tmp_path, 0) / FILE_NAME).exists() and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate()
        # A shell shows 130 for both. Python ends by the signal itself where it came while a string
        # was being executed, as standard classes do when they are made.
        assert process.returncode in (130, -signal.SIGINT), said
        assert "bbh: interrupted; to go on: bbh run digits --method map" in said
        assert not [*tmp_path.rglob(FILE_NAME)]

    def test_processes_are_asked_to_stop_and_waited_for(self, tmp_path):
        code = "import pathlib, signal, sys, time\n"
        code += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        code += "pathlib.Path(sys.argv[1]).touch()\ntime.sleep(600)"
        children, started = Children(), tmp_path / "started"
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(children.run, [sys.executable, "-c", code, str(started)])
            while not started.exists():
                time.sleep(0.02)
            children.stop()
            assert ended.result() == 7
        assert children.run([sys.executable, "-c", ""]) != 0  # none starts afterwards


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), MemoryError(), ValueError("x[/b] [red]")]
)
def test_errors_end_in_one_line(error, capsys):
    before = signal.getsignal(signal.SIGTERM)

    def fails():
        raise error

    with pytest.raises(SystemExit) as ended:
        entry_point(fails)
    signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"bbh: {str(error) or 'MemoryError'}\n"
