"""Nothing is lost: a training that ends in any way goes on as if it had not.

(The kill test proper, with SIGKILL, is test_kill.py; here are the ways to end that can be aimed.)
"""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from conftest import easy_reward_of
from safetensors.torch import load_file, save_file
from test_train import ROOT, SMALL, command, interrupt, lines, rows_of

import checkpoint
import runs
import train
from rollout import Batch

FLAGS = (
    "--steps 6 --save-every 2 --eval-every 2 --learning-rate 1e-3 --lr-warmup 3 --minibatches 1 "
    "--ring-size 2 --prefix-min 0.2 --prefix-max 0.3"
)


@pytest.fixture(scope="module", autouse=True)
def easy_reward():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "reward", easy_reward_of)
        yield


def run(base, out, flags=FLAGS):
    return train.main([*SMALL.split(), *flags.split(), "--model", base, "--out", str(out)])


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    """A run that nothing stopped."""
    out = tmp_path_factory.mktemp("whole")
    assert run(base, out) == 0
    return out


@pytest.fixture(scope="module")
def crashed(base, tmp_path_factory):
    out = tmp_path_factory.mktemp("crashed")
    crash(base, out, 3)
    return out


@pytest.fixture
def half(crashed, tmp_path):
    """A run that crashed in step 3, its checkpoint being of step 2."""
    return shutil.copytree(crashed, tmp_path / "half")


def crash(base, out, step, flags=FLAGS):
    """A run that ends with a bug when it has rewarded the rows of a step."""
    original = train.collect

    def collect(args, now, *rest):
        done = original(args, now, *rest)
        if now == step:
            raise ZeroDivisionError
        return done

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(train, "collect", collect)
        run(base, out, flags)


def resume(out, *flags):
    return train.main(["--resume", str(out), *flags])


def refused(capsys, function, *args):
    """function(...) ends with code 2 and one line; returns the line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        function(*args)
    errors = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert stop.value.code == 2 and len(errors) == 1
    return errors[0]


def same(out, other):
    """Two runs are equal: every row but for its timings, every sample, every weight."""
    for kind in ("train", "eval"):
        assert rows_of(out, kind) == rows_of(other, kind)
    order = [[(row["kind"], row["step"]) for row in lines(path / "metrics.jsonl")]
             for path in (out, other)]
    assert order[0] == order[1]
    assert (out / "samples.jsonl").read_bytes() == (other / "samples.jsonl").read_bytes()
    weights = [load_file(path / "model" / "model.safetensors") for path in (out, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    return True


def contents(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------------------- going on


@pytest.mark.parametrize("step", [0, 1, 3, 4, 5])
def test_a_run_that_crashed_goes_on_as_if_it_had_not(base, whole, tmp_path, step):
    """In steps 0 and 1 there is no checkpoint yet; a row of step 3 is there but not in one."""
    crash(base, tmp_path / "out", step)
    assert resume(tmp_path / "out") == 0
    assert same(tmp_path / "out", whole)
    # its ring was full, and its moments are not those of a fresh AdamW
    kept = json.loads((tmp_path / "out" / "checkpoint-6" / "state.json").read_text())
    assert {"policy", "optimizer", "snapshot-4", "snapshot-5"} == set(kept["files"])
    moments = load_file(tmp_path / "out" / "checkpoint-6" / "optimizer.safetensors")
    assert moments["0.step"] == 6 and moments["0.exp_avg_sq"].max() > 0
    assert [path.name for path in (tmp_path / "out").glob("checkpoint*")] == ["checkpoint-6"]


def test_with_a_kl_term_the_reference_is_still_the_start(base, tmp_path):
    """Not the policy as it was when the run went on."""
    flags = f"{FLAGS} --kl-coef 0.1"
    run(base, tmp_path / "whole", flags)
    crash(base, tmp_path / "out", 3, flags)
    resume(tmp_path / "out")
    assert same(tmp_path / "out", tmp_path / "whole")


def test_a_row_that_was_cut_off_is_made_again(half, whole):
    """The disk was full, or the machine lost power, in the middle of a line."""
    with open(half / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 3, "rew')
    assert resume(half) == 0 and same(half, whole)


def test_a_finished_run_may_grow(base, whole, tmp_path):
    """The longer run is the one that would have been, had it been longer from the start."""
    run(base, tmp_path / "out", FLAGS.replace("--steps 6", "--steps 4"))
    before = (tmp_path / "out" / "config.json").read_text()
    assert resume(tmp_path / "out", "--steps", "6") == 0
    assert same(tmp_path / "out", whole)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["steps"] == 6 and config["before"] == json.loads(before)


def test_it_may_go_on_from_another_folder(tmp_path, base, monkeypatch):
    """What its flags name is where it was."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    shutil.copytree(base, tmp_path / "here" / "base")
    for name in ("train", "test"):
        text = json.dumps({"problem": f"1+1, {name}?", "answer": "2"})
        (tmp_path / "here" / f"{name}.jsonl").write_text(f"{text}\n" * 4)
    monkeypatch.chdir(tmp_path / "here")
    flags = "--task train.jsonl --eval-task test.jsonl --max-new-tokens 4 --no-chat-template"
    run("base", "out", f"--steps 2 {flags}")
    monkeypatch.chdir(tmp_path / "there")
    assert resume("../here/out", "--steps", "3") == 0
    assert len(rows_of(tmp_path / "here" / "out", "train")) == 3


def test_a_finished_run_has_nothing_to_do(whole, tmp_path, capsys):
    """And what it has is not touched."""
    shutil.copytree(whole, tmp_path / "out")
    before = contents(tmp_path / "out")
    assert resume(tmp_path / "out") == 0
    after = contents(tmp_path / "out")
    del before[str(tmp_path / "out" / "curves.png")], after[str(tmp_path / "out" / "curves.png")]
    assert after == before
    assert capsys.readouterr().out.split()[:4] == ["step", "0", "step", "6"]


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("flags", [
    "--learning-rate 1e-4", "--method grpo", "--steps 5", "--rng-seed 1", "--micro-batch 8",
    "--out elsewhere",
])
def test_flags_beside_resume_must_agree(half, capsys, flags):
    """Otherwise half a run would be one experiment, and half another."""
    before, (name, value) = contents(half), flags.split()
    line = refused(capsys, resume, half, name, value)
    assert name in line and value.replace("1e-4", "0.0001") in line
    assert contents(half) == before


def test_flags_beside_resume_may_be_repeated(half, whole):
    flags = "--learning-rate", "0.001", "--steps", "6", "--out", str(half)
    assert resume(f"{half}/", *flags) == 0 and same(half, whole)


def test_a_file_with_the_name_of_the_task_is_not_opened(half, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "countdown").write_text("")
    assert resume(half) == 0 and same(half, whole)


def test_a_folder_with_the_name_of_a_hub_id_is_a_line(half, base, tmp_path, monkeypatch, capsys):
    """It would be opened in place of what the run was begun with."""
    config = json.loads((half / "config.json").read_text())
    (half / "config.json").write_text(json.dumps({**config, "model": "owner/name"}))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, "owner/name")
    before = contents(half)
    line = refused(capsys, resume, half)
    assert "--model owner/name" in line and "another directory" in line
    assert contents(half) == before


@pytest.mark.parametrize("name", ["policy", "optimizer", "snapshot-0", "snapshot-1", "state.json"])
@pytest.mark.parametrize("how", ["truncated", "missing"])
def test_a_checkpoint_that_is_not_whole_is_a_line(half, capsys, name, how):
    path = half / "checkpoint-2" / (name if "." in name else f"{name}.safetensors")
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size // 2)
    before = contents(half)
    assert "checkpoint-2 cannot be resumed from" in refused(capsys, resume, half)
    assert contents(half) == before


@pytest.mark.parametrize("change, words", [
    ({"format": 99}, "format 99"), ({"format": None}, "format None"), ({"files": None}, "cannot"),
    ({"step": 1}, "of this step"), ({"step": "2"}, "of this step"), ({"step": 2.0}, "step 2.0"),
    ({"micro_batch": 0}, "micro_batch 0"), ({"micro_batch": "x"}, "micro_batch 'x'"),
    ({"skipped": None}, "skipped None"),
    ({"files": ["policy", "optimizer", "snapshot-1"]}, "of these files"),
    ({"files": ["../../base/model"]}, "of these files"),
])
def test_a_checkpoint_of_another_format_is_a_line(half, capsys, change, words):
    path = half / "checkpoint-2" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    before = contents(half)
    assert words in refused(capsys, resume, half)
    assert contents(half) == before


@pytest.mark.parametrize("name, change", [
    ("optimizer", lambda old: {**old, "3.exp_avg": torch.zeros(1)}),
    ("optimizer", lambda old: {key: old[key] for key in old if key != "3.exp_avg_sq"}),
    ("optimizer", lambda old: {key: old[key] for key in old if not key.startswith("3.")}),
    ("optimizer", lambda old: {}),
    ("snapshot-1", lambda old: {key: old[key] for key in [*old][1:]}),
    ("snapshot-1", lambda old: {key: tensor[:1] for key, tensor in old.items()}),
    ("policy", lambda old: {}),
])
def test_tensors_that_are_not_those_of_the_model_are_a_line(half, capsys, name, change):
    path = half / "checkpoint-2" / f"{name}.safetensors"
    save_file(change({key: tensor.clone() for key, tensor in load_file(path).items()}), path)
    before = contents(half)
    assert f"its {name} is damaged" in refused(capsys, resume, half)
    assert contents(half) == before


@pytest.mark.parametrize("change", [
    {"steps": "six"}, {"method": "foo"}, {"device": "cuda:99"}, {"new_flag": 1},
    {"learning_rate": [1]},
])
def test_a_config_that_was_edited_is_a_line(half, capsys, change):
    config = json.loads((half / "config.json").read_text())
    (half / "config.json").write_text(json.dumps({**config, **change}))
    before = contents(half)
    line = refused(capsys, resume, half)
    assert [*change][0].replace("_", "-") in line.replace("_", "-")
    assert contents(half) == before


def test_an_empty_name_is_no_new_run(capsys, monkeypatch, tmp_path):
    """As of a variable of the shell that is not set."""
    monkeypatch.chdir(tmp_path)
    assert "there is no run" in refused(capsys, train.main, ["--resume", ""])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text, words", [
    (None, "there is no run"), ("", "is broken"), ("[]", "is broken"), ("{}", "another version"),
])
def test_a_folder_without_a_run_is_a_line(tmp_path, capsys, text, words):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    line = refused(capsys, resume, tmp_path)
    assert words in line and str(tmp_path) in line


def test_another_model_is_a_line(half, base, capsys):
    """--model is a path, and something else may lie there by now."""
    config = json.loads((half / "config.json").read_text())
    with pytest.MonkeyPatch.context() as patch:
        original = train.open_model

        def open_model(*args):
            model, tokenizer = original(*args)
            model.resize_token_embeddings(99)
            return model, tokenizer

        patch.setattr(train, "open_model", open_model)
        assert "another model" in refused(capsys, resume, half)
    assert json.loads((half / "config.json").read_text()) == config


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl"])
@pytest.mark.parametrize("how, words", [
    (lambda rows: [], "every step before 2"), (lambda rows: rows[2:], "every step before 2"),
    (lambda rows: rows[1:2] + rows, "every step before 2"),
    (lambda rows: ["{", *rows], "line 1 is broken"),
    (lambda rows: ['{"kind": "train"}', *rows], "none of a training's"),
])
def test_lost_rows_are_a_line(half, capsys, name, how, words):
    """A file that was deleted or edited could never be complete again. What is left stays."""
    rows = (half / name).read_text().splitlines()
    (half / name).write_text("".join(f"{row}\n" for row in how(rows)))
    before = contents(half)
    assert words in refused(capsys, resume, half)
    assert contents(half) == before


@pytest.mark.parametrize("change, words", [
    (lambda rows: rows[1:], "the evaluation of step 0"),
    (lambda rows: [rows[0].replace('"kind": "eval", ', ""), *rows[1:]], "every step before 2"),
    (lambda rows: [row.replace('"kind": "train", ', "") for row in rows], "every step before 2"),
])
def test_a_lost_evaluation_or_kind_is_a_line(half, capsys, change, words):
    rows = (half / "metrics.jsonl").read_text().splitlines()
    (half / "metrics.jsonl").write_text("".join(f"{row}\n" for row in change(rows)))
    before = contents(half)
    assert words in refused(capsys, resume, half)
    assert contents(half) == before


def test_what_is_made_anew_for_want_of_a_checkpoint_is_told(half, whole, capsys):
    shutil.rmtree(half / "checkpoint-2")
    assert resume(half) == 0 and same(half, whole)
    assert "has 0 of 6 steps" in (err := capsys.readouterr().err) and "; 10 rows of later" in err


def test_blank_lines_are_no_rows(half, whole):
    text = (half / "metrics.jsonl").read_text()
    (half / "metrics.jsonl").write_text(text.replace("\n", "\n\n"))
    assert resume(half) == 0 and same(half, whole)


def test_what_has_changed_since_is_told_and_kept(half, capsys, monkeypatch):
    config = json.loads((half / "config.json").read_text())
    config["versions"]["torch"] = "1.0"
    (half / "config.json").write_text(json.dumps(config))
    assert resume(half) == 0
    assert "note: versions were" in capsys.readouterr().err
    now = json.loads((half / "config.json").read_text())
    assert now["before"] == config and now["versions"]["torch"] == torch.__version__


def test_weights_that_are_not_finite_are_not_saved(half, capsys, monkeypatch):
    """They would take the place of the last good ones."""
    original = train.update

    def update(args, policy, *rest):
        done = original(args, policy, *rest)
        with torch.no_grad():
            next(policy.parameters()).fill_(torch.inf)
        return done

    before = contents(half / "checkpoint-2")
    monkeypatch.setattr(train, "update", update)
    monkeypatch.setattr(train, "rollout_metrics", lambda *_: {"reward": 0.0})
    line = refused(capsys, resume, half)
    assert "not finite" in line and "--learning-rate" in line
    assert contents(half / "checkpoint-2") == before


def test_a_folder_in_use_is_a_line(half, capsys):
    """Two processes would train two policies into one metrics.jsonl."""
    before = contents(half)
    with runs.alone_in(half):
        done = subprocess.run([sys.executable, ROOT / "train.py", "--resume", half],
                              capture_output=True, text=True)
    assert done.returncode == 2 and "is in use" in done.stderr and "Traceback" not in done.stderr
    assert contents(half) == before


# ---------------------------------------------------------------------------- disks and signals


def test_a_disk_that_fills_up_is_a_line(half, whole):
    """Simulated by a limit on the size of a file. The last checkpoint stays, and is enough."""
    before = contents(half / "checkpoint-2")
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", "--resume", half], capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6)))
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "cannot be written" in errors[0]
    assert contents(half / "checkpoint-2") == before
    assert not list(half.glob("*.unfinished"))  # which would keep the disk full
    assert resume(half) == 0 and same(half, whole)


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl"])
def test_a_folder_that_turns_read_only_is_a_line(half, whole, capsys, monkeypatch, name):
    original, calls = open, []

    def read_only(path, mode="r", *args, **kwargs):
        if mode == "a" and str(path).endswith(name):
            calls.append(path)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return original(path, mode, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "open", read_only, raising=False)
        line = refused(capsys, resume, half)
    assert name in line and "Read-only" in line and calls
    assert resume(half) == 0 and same(half, whole)


def test_a_save_that_fails_leaves_the_one_before(half, capsys, monkeypatch):
    before = contents(half / "checkpoint-2")
    with monkeypatch.context() as patch:
        def full(*args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(checkpoint, "save_file", full)
        assert "No space left" in refused(capsys, resume, half)
    assert contents(half / "checkpoint-2") == before and not list(half.glob("*.unfinished"))


def test_the_folder_above_need_not_be_readable(half, whole, monkeypatch):
    """A cluster's /scratch may have mode 711. (Simulated: root may read it.)"""
    original = os.open

    def refuse(path, *args, **kwargs):
        if str(path).endswith(".."):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(runs.os, "open", refuse)
    assert resume(half) == 0 and same(half, whole)


def test_what_a_killed_save_left_is_taken_away(half):
    (half / "config.json.unfinished").write_text("half")
    (half / "checkpoint-3.unfinished").mkdir()
    (half / "checkpoint-3.unfinished" / "policy.safetensors").write_text("half")
    assert resume(half) == 0 and not list(half.glob("*.unfinished"))


def test_sigterm_finishes_the_step_and_saves(base, tmp_path):
    """What a cluster sends before it takes the machine away."""
    out = tmp_path / "out"

    def two_steps(stderr):
        return (out / "metrics.jsonl").exists() and len(rows_of(out, "train")) >= 2

    argv = command(base, out, "--steps 10000 --save-every 0")
    code, stderr = interrupt(argv, tmp_path, two_steps, signum=signal.SIGTERM)
    assert code == 143 and "Traceback" not in stderr
    steps = len(rows_of(out, "train"))
    assert (out / f"checkpoint-{steps}" / "state.json").exists() and steps < 10000
    code, stderr = interrupt(
        [sys.executable, str(ROOT / "train.py"), "--resume", str(out)], tmp_path,
        lambda stderr: len(rows_of(out, "train")) > steps)
    assert code == 130
    assert [row["step"] for row in rows_of(out, "train")] == [*range(len(rows_of(out, "train")))]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(first):
    with runs.finish_step_on_interrupt() as asked:
        os.kill(os.getpid(), first)
        assert asked == [first]
        with pytest.raises(SystemExit) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
    assert stop.value.code == 143


# ------------------------------------------------------------------------- what is not finite


def not_finite(monkeypatch, is_bad):
    """The n-th loss of a run is nan where is_bad(n)."""
    original, calls = train.policy_loss, []

    def policy_loss(*args):
        loss, sums = original(*args)
        calls.append(1)
        return (loss * torch.nan if is_bad(len(calls) - 1) else loss), sums

    monkeypatch.setattr(train, "policy_loss", policy_loss)


def test_an_update_that_is_not_finite_is_skipped_and_counted(base, tmp_path, capsys, monkeypatch):
    not_finite(monkeypatch, lambda n: n == 1)
    run(base, tmp_path / "out", "--steps 3 --minibatches 1 --micro-batch 8 --learning-rate 1e-3")
    rows = rows_of(tmp_path / "out", "train")
    assert [row["skipped_updates"] for row in rows] == [0, 1, 0]
    assert [row["grad_norm"] is None for row in rows] == [False, True, False]
    notes = [x for x in capsys.readouterr().err.splitlines() if x.startswith("note: step 1")]
    assert len(notes) == 1 and "1 of 1 updates skipped" in notes[0] and "1 in a row" in notes[0]


def test_a_run_that_has_skipped_every_update_goes_on(base, tmp_path, monkeypatch):
    """It has no moments yet, and none are missing."""
    not_finite(monkeypatch, lambda n: True)
    run(base, tmp_path / "out", "--steps 2 --minibatches 1 --micro-batch 8")
    assert not load_file(tmp_path / "out" / "checkpoint-2" / "optimizer.safetensors")
    assert resume(tmp_path / "out", "--steps", "3") == 0


def test_ten_in_a_row_stop_the_run_and_leave_the_batch(base, tmp_path, capsys, monkeypatch):
    not_finite(monkeypatch, lambda n: n > 0)
    flags = "--steps 30 --minibatches 1 --micro-batch 8 --learning-rate 1e-3 --save-every 4"
    line = refused(capsys, run, base, tmp_path / "out", flags)
    rows = rows_of(tmp_path / "out", "train")
    assert [row["skipped_updates"] for row in rows] == [0] + [1] * 10
    batch = Batch(**load_file(tmp_path / "out" / "batch-10-0.safetensors"))
    assert "batch-10-0.safetensors" in line and "10 updates in a row" in line
    assert batch.lengths.tolist() == batch.mask.sum(1).tolist() and len(batch.advantages) == 8
    assert (batch.old_logp[batch.mask] < 0).all()  # of the first minibatch, too
    # what counts is saved too: after 8 steps, 7 were skipped, and after a resume 3 more are enough
    refused(capsys, resume, tmp_path / "out")
    assert len(rows_of(tmp_path / "out", "train")) == 11


# -------------------------------------------------------------------------------- out of memory


@pytest.mark.parametrize("error", [
    torch.OutOfMemoryError("CUDA out of memory"), MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")])
def test_out_of_memory_halves_the_micro_batch(base, tmp_path, capsys, monkeypatch, error):
    """The rows of a step are the same, and so is their gradient: only the split is another."""
    flags = "--steps 2 --minibatches 1 --learning-rate 1e-3 --prefix-min 0.2 --prefix-max 0.3"
    run(base, tmp_path / "small", f"{flags} --micro-batch 2")
    capsys.readouterr()
    original = train.token_logps

    def token_logps(model, batch, temperature):
        if len(batch.lengths) > 2:
            raise error
        return original(model, batch, temperature)

    monkeypatch.setattr(train, "token_logps", token_logps)
    run(base, tmp_path / "out", f"{flags} --micro-batch 8")
    err = capsys.readouterr().err
    assert [f"--micro-batch {n}" in err for n in (8, 4, 2, 1)] == [False, True, True, False]
    for one, two in zip(*(rows_of(tmp_path / n, "train") for n in ("small", "out")), strict=True):
        assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-4)
    state = json.loads((tmp_path / "out" / "checkpoint-2" / "state.json").read_text())
    assert state["micro_batch"] == 2  # a resumed run need not find out again


def test_what_cannot_be_halved_is_a_line(base, tmp_path, capsys, monkeypatch):
    def token_logps(*args):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(train, "token_logps", token_logps)
    line = refused(capsys, run, base, tmp_path / "out", "--steps 1")
    assert "--max-new-tokens" in line and "--gradient-checkpointing" in line


@pytest.mark.parametrize("where, flag", [
    ("rollout", "--group-size"), ("draw_prefixes", "--prompts-per-step"),
    ("score", "--micro-batch"), ("evaluate", "--micro-batch")])
def test_out_of_memory_elsewhere_names_the_flag_to_lower(
        base, tmp_path, capsys, monkeypatch, where, flag):
    def full(*args):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(train, where, full)
    line = refused(capsys, run, base, tmp_path / "out", "--steps 3")
    assert "out of memory" in line and flag in line


def test_another_error_keeps_its_traceback(base, tmp_path, monkeypatch):
    def broken(*args):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(train, "token_logps", broken)
    with pytest.raises(RuntimeError, match="a bug of ours"):
        run(base, tmp_path / "out", "--steps 1")

