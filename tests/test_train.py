"""train.py from end to end: what a run leaves behind, what repeats bit for bit, what is refused."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from conftest import easy_reward_of, random_model
from safetensors.torch import load_file, save
from transformers import AutoModelForCausalLM, AutoTokenizer

import eval as evaluation
import train
from seeds import Ring, Seeds
from tasks.problems import load_problems

ROOT = Path(__file__).parent.parent
SMALL = (
    "--prompts-per-step 2 --group-size 4 --minibatches 2 --micro-batch 4 --eval-problems 4 "
    "--eval-samples 4 --eval-every 0 --threads 1 --snapshot-every 1 --min-lag 1"
)
MOVING = "--steps 4 --learning-rate 1e-3 --min-lag 2"  # fast enough that any difference would show
BY_REGION = (
    "entropy entropy_effective clip_frac_low clip_frac_high clip_lost capped ratio_mean ratio_max "
    "kl_behaviour"
).split()
TRAIN_KEYS = {
    *"kind step reward reward_seeded reward_unseeded zero_std_groups length cut_off".split(),
    "solved_seeded_only", "solved_unseeded_only",
    *"prefix_length prefix_finished snapshot_lag ess snapshot_share grad_norm".split(),
    *"seconds_prefix seconds_rollout seconds_score seconds_update tokens_per_second".split(),
    *(key + region for key in BY_REGION for region in ("", "_prefix", "_continuation")),
}
EVAL_KEYS = {
    *"kind step problems samples distinct_correct entropy length cut_off seconds".split(),
    *(f"pass@{k}{edge}" for k in (1, 4) for edge in ("", "_low", "_high")),
}


# ------------------------------------------------------------------------------------- helpers


@pytest.fixture(scope="module")
def model(base):
    return base


@pytest.fixture(scope="module", autouse=True)
def easy_reward():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "reward", easy_reward_of)
        yield


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows_of(out, kind):
    """A run's rows of metrics.jsonl, numbers only, without those that the clock decides."""
    return [
        {k: v for k, v in row.items() if not re.match("kind|seconds|tokens_per_second", k)}
        for row in lines(out / "metrics.jsonl") if row["kind"] == kind
    ]


def run(model, out, flags):
    """A run in this process; returns the rows of its training steps."""
    argv = [*SMALL.split(), *flags.split(), "--model", model, "--out", str(out)]
    assert train.main(argv) == 0
    return rows_of(out, "train")


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    """The folder of a grpo run."""
    out = tmp_path_factory.mktemp("plain")
    run(model, out, f"{MOVING} --method grpo")
    return out


@pytest.fixture(scope="module")
def seeded(model, tmp_path_factory):
    """The folder of a thinking_seeds run with prefixes of 4 to 6 tokens, from step 2 on."""
    out = tmp_path_factory.mktemp("seeded")
    run(model, out, f"{MOVING} --prefix-min 0.2 --prefix-max 0.3")
    return out


@contextlib.contextmanager
def within(seconds):
    """Fails what hangs. Not by a TimeoutError: that is an OSError, which may be caught."""
    def late(signum, frame):
        pytest.fail(f"not done after {seconds} s")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def command(model, out, flags):
    return [sys.executable, str(ROOT / "train.py"), *SMALL.split(), *flags.split(),
            "--model", model, "--out", str(out)]


def interrupt(argv, folder, ready, env=None, signum=signal.SIGINT):
    """Starts argv, sends it a signal once ready(what it wrote to stderr): (exit code, stderr)."""
    with open(folder / "stderr", "w") as stderr:
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=stderr,
            # a background job inherits an ignored SIGINT
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        deadline = time.monotonic() + 90
        while not ready((folder / "stderr").read_text()):
            assert process.poll() is None, (folder / "stderr").read_text()
            assert time.monotonic() < deadline, "never got ready"
            time.sleep(0.05)
        process.send_signal(signum)
        return process.wait(timeout=60), (folder / "stderr").read_text()
    finally:
        process.kill()
        process.wait()


# ------------------------------------------------------------------------ what a run leaves behind


def test_a_run_leaves_its_files(model, tmp_path):
    """The promise of the README: one command, from any folder, and all of this is there."""
    out = tmp_path / "out"
    # The weight decay moves the weights even where no response earned anything.
    flags = "--steps 2 --learning-rate 1e-3 --weight-decay 0.1"
    done = subprocess.run(
        command(model, out, flags), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"out"}

    config = json.loads((out / "config.json").read_text())
    assert {"torch", "transformers"} <= config.pop("versions").keys()
    assert "git_commit" in config
    argv = [*SMALL.split(), *flags.split(), "--model", model, "--out", str(out)]
    assert vars(train.parse_args(argv)).items() <= config.items()
    assert config["seed_fraction"] == 0.5 and config["method"] == "thinking_seeds"

    metrics = lines(out / "metrics.jsonl")
    kinds = [(row["kind"], row["step"]) for row in metrics]
    assert kinds == [("eval", 0), ("train", 0), ("train", 1), ("eval", 2)]
    for row in metrics:
        assert (TRAIN_KEYS if row["kind"] == "train" else EVAL_KEYS) <= row.keys()

    samples = lines(out / "samples.jsonl")
    assert [row["step"] for row in samples] == [0, 0, 1, 1]
    for row in samples:
        assert {"prompt", "prefix", "continuation", "reward", "snapshot_step"} <= row.keys()
    assert [row["snapshot_step"] for row in samples] == [None, None, 0, None]
    assert [row["prefix"] != "" for row in samples] == [False, False, True, False]

    before = AutoModelForCausalLM.from_pretrained(model).state_dict()
    after = AutoModelForCausalLM.from_pretrained(out / "model").state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert AutoTokenizer.from_pretrained(out / "model")("1+2")["input_ids"] == (
        AutoTokenizer.from_pretrained(model)("1+2")["input_ids"])

    from matplotlib.image import imread

    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert imread(out / "curves.png").ndim == 3
    assert done.stdout.splitlines()[0].split() == ["step", "0", "step", "2"]
    assert "\npass@1 " in done.stdout


def test_an_empty_folder_is_accepted(model, tmp_path):
    """mktemp -d, a mounted volume: an empty folder has nothing to lose."""
    assert len(run(model, tmp_path, "--steps 1")) == 1
    assert (tmp_path / "curves.png").exists()


def test_a_missing_matplotlib_is_a_line(model, tmp_path, monkeypatch, capsys):
    """matplotlib is optional; hours of training must not end in an ImportError."""
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    run(model, tmp_path, "--steps 1")
    assert capsys.readouterr().out.count("matplotlib is not installed") == 1
    assert (tmp_path / "model").exists() and not (tmp_path / "curves.png").exists()


def test_a_finite_training_set_is_all_that_is_asked(model, tmp_path):
    """With --train-problems 3, no other problem is ever trained on."""
    assert len(run(model, tmp_path, "--steps 3 --train-problems 3")) == 3
    pool = {row["prompt"] for row in load_problems("countdown", "train", 3, seed=0)}
    asked = {row["prompt"] for row in lines(tmp_path / "samples.jsonl")}
    assert asked <= pool and len(asked) > 1


# ------------------------------------------------------------------------------- bit for bit


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_without_seeds_thinking_seeds_is_grpo(model, plain, tmp_path, kind):
    """The comparison of the two methods is fair only if the seeds are their one difference."""
    run(model, tmp_path, f"{MOVING} --seed-fraction 0")
    rows = rows_of(tmp_path, kind)
    assert len(rows) == (4 if kind == "train" else 2)
    assert rows == rows_of(plain, kind)


def test_another_rng_seed_is_another_run(model, plain, tmp_path):
    """Were every run the same, the tests around this one would show nothing."""
    rows = run(model, tmp_path, f"{MOVING} --method grpo --rng-seed 1")
    for row, other in zip(rows, rows_of(plain, "train"), strict=True):
        assert row["entropy"] != other["entropy"] and row["grad_norm"] > 0
    for row, other in zip(rows_of(tmp_path, "eval"), rows_of(plain, "eval"), strict=True):
        assert row["entropy"] != other["entropy"]


def test_until_the_first_snapshot_is_old_enough_it_is_grpo(plain, seeded):
    """An empty past costs no draw; after that the seeds must make a difference."""
    pairs = list(zip(rows_of(plain, "train"), rows_of(seeded, "train"), strict=True))
    assert [a == b for a, b in pairs] == [True, True, False, False]
    assert [b["snapshot_lag"] is None for _, b in pairs] == [True, True, False, False]
    assert [a["snapshot_lag"] for a, _ in pairs] == [None] * 4


def test_the_same_command_gives_the_same_metrics(model, seeded, tmp_path):
    """A draw from a generator that nobody reseeded would show here."""
    run(model, tmp_path, f"{MOVING} --prefix-min 0.2 --prefix-max 0.3")
    for kind in ("train", "eval"):
        assert rows_of(tmp_path, kind) == rows_of(seeded, kind)
    assert lines(tmp_path / "samples.jsonl") == lines(seeded / "samples.jsonl")


@pytest.mark.parametrize("flags, other", [
    ("--method grpo", "plain"), ("--prefix-min 0.2 --prefix-max 0.3", "seeded")])
def test_an_evaluation_changes_nothing(model, tmp_path, request, flags, other):
    """How often one looks must not change what one sees."""
    other = request.getfixturevalue(other)
    rows = run(model, tmp_path, f"{MOVING} {flags} --eval-every 1")
    assert [row["step"] for row in rows_of(tmp_path, "eval")] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows_of(other, "eval")] == [0, 4]
    assert rows == rows_of(other, "train")


# -------------------------------------------------------------------------------- the optimizer


def recorded(monkeypatch, value):
    """AdamW.step only keeps value(optimizer): the weights stay where they are."""
    kept = []
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: kept.append(value(self)))
    return kept


def test_micro_batches_do_not_change_the_gradient(model, tmp_path, monkeypatch):
    """--micro-batch is there to save memory; a mean per micro-batch would change the objective."""
    flat = recorded(monkeypatch, lambda optimizer: torch.cat(
        [p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]))
    flags = "--steps 2 --max-grad-norm 1000 --micro-batch"
    rows = [run(model, tmp_path / size, f"{flags} {size}") for size in ("1", "8")]
    assert len(flat) == 8
    for one, eight in zip(flat[:4], flat[4:], strict=True):
        assert one.abs().max() > 1e-3
        torch.testing.assert_close(one, eight, rtol=0, atol=1e-6)
    for one, eight in zip(*rows, strict=True):
        for key, value in one.items():  # some are None in both
            assert value == eight[key] or value == pytest.approx(eight[key], abs=1e-5), key
    assert rows[0][1]["snapshot_lag"] == 1


def test_learning_rate_warms_up(model, tmp_path, monkeypatch):
    """Linear from the first step on, which must not be a step of 0, and constant after."""
    rates = recorded(monkeypatch, lambda optimizer: optimizer.param_groups[0]["lr"])
    run(model, tmp_path, "--steps 6 --minibatches 1 --learning-rate 0.01 --lr-warmup 4")
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_kl_is_to_the_start(model, plain, tmp_path):
    """The reference is the starting policy: the same at first, then the policy moves and it not."""
    rows = run(model, tmp_path, "--steps 3 --minibatches 1 --learning-rate 1e-3 --kl-coef 0.1")
    assert abs(rows[0]["kl_ref"]) < 1e-8
    assert rows[1]["kl_ref"] > 1e-6 and rows[2]["kl_ref"] > 1e-6
    assert all("kl_ref" not in row for row in rows_of(plain, "train"))


# ----------------------------------------------------------------------------------- the methods


def test_prefixes_are_within_their_bounds(model, seeded):
    """Only the snapshot's own stop may make a prefix shorter than --prefix-min."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    lag = {row["step"]: row["snapshot_lag"] for row in rows_of(seeded, "train")}
    samples = [row for row in lines(seeded / "samples.jsonl") if row["prefix"]]
    assert [row["step"] for row in samples] == [2, 3]
    for row in samples:
        ids = tokenizer(row["prefix"])["input_ids"]
        assert 4 <= len(ids) <= 6 or (len(ids) < 4 and ids[-1] == tokenizer.eos_token_id)
        assert row["snapshot_step"] == row["step"] - lag[row["step"]]
    for row in rows_of(seeded, "train")[2:]:
        assert 1 <= row["prefix_length"] <= 6
        assert 0 < row["snapshot_share"] < 0.5  # at most 6 tokens of every other row


def test_mask_prefix_learns_nothing_on_the_prefix(model, tmp_path):
    """The prefix is there, but no gradient comes from it."""
    rows = run(model, tmp_path, "--steps 3 --method mask_prefix --learning-rate 1e-3")
    assert [row["snapshot_lag"] is None for row in rows] == [True, False, False]
    for row in rows[1:]:
        assert row["snapshot_share"] > 0 and row["entropy_effective_prefix"] is None
        assert row["entropy_effective_continuation"] is not None


def test_sequence_mix_takes_whole_trajectories(model, tmp_path):
    """What the paper argues against must be exactly that: the policy adds no token of its own."""
    rows = run(model, tmp_path, "--steps 3 --method sequence_mix --learning-rate 1e-3")
    assert [row["snapshot_lag"] is None for row in rows] == [True, False, False]
    for row in rows[1:]:
        assert row["prefix_finished"] == 1.0 and row["prefix_length"] > 1
        assert 0 < row["snapshot_share"] < 1
    whole = [row for row in lines(tmp_path / "samples.jsonl") if row["prefix"]]
    assert [row["continuation"] for row in whole] == ["", ""]


def test_suffix_is_the_other_way_round(model, tmp_path):
    """It asks where old tokens belong, so about as many must be old as with thinking_seeds."""
    flags = "--steps 3 --learning-rate 1e-4 --group-size 16 --prompts-per-step 4"
    rows, share = run(model, tmp_path / "suffix", f"{flags} --method suffix"), {}
    seeds = run(model, tmp_path / "seeds", flags)
    for step in (1, 2):
        share = [each[step]["snapshot_share"] for each in (rows, seeds)]
        assert share[0] == pytest.approx(share[1], rel=0.5) and share[1] > 0.1
        assert rows[step]["prefix_finished"] == 0 and rows[step]["prefix_length"] > 1
    samples = lines(tmp_path / "suffix" / "samples.jsonl")
    assert all(row["prefix"] for row in samples if row["snapshot_step"] is not None)


def test_tokens_that_were_thrown_away_count_as_generated(model, tmp_path):
    flags = "--steps 2 --prefix-min 0.2 --prefix-max 0.4 --max-new-tokens 10"  # 2 to 4 tokens
    for method in ("grpo", "thinking_seeds", "suffix"):
        rows = run(model, tmp_path / method, f"{flags} --method {method}")
        responses = [8 * row["length"] for row in rows]  # tokens
        assert rows[0]["tokens_generated"] == responses[0]
        thrown_away = rows[1]["tokens_generated"] - responses[1]
        # 4 rows are seeded: all prefixes are drawn as long as the longest, and cut; with suffix the
        # ends of the policy's drafts are
        low, high = {"grpo": (0, 0), "thinking_seeds": (0, 8), "suffix": (1, 36)}[method]
        assert low <= thrown_away <= high


def test_seeded_inference_begins_with_the_runs_own_past(model, tmp_path, monkeypatch, capsys):
    flags = "--steps 4 --learning-rate 1e-3 --ring-size 3 --max-new-tokens 12"
    plain = run(model, tmp_path / "plain", f"{flags} --method grpo")
    assert all(row["snapshot_share"] == 0 for row in plain)  # the ring is kept, and not used
    taken, original = [], evaluation.draw_prefixes
    monkeypatch.setattr(evaluation, "draw_prefixes", lambda ring, model, step, *rest: taken.append(
        step) or original(ring, model, step, *rest))
    words = "--problems 2 --samples 6 --max-new-tokens 12 --threads 1 --seed-from"
    evaluation.main([*words.split(), f"{tmp_path}/plain", "--out", f"{tmp_path}/eval"])
    ring, policy = Ring(3, 1, 1), torch.nn.Linear(1, 1)
    for step in range(5):  # as training keeps them, up to the step that the run would go on with
        ring.keep(step, policy)
    assert taken == ring.eligible(4) == [2, 3]  # each for 6 of the 12 samples
    assert json.loads((tmp_path / "eval/config.json").read_text())["model"].endswith("plain/model")
    prefixes = [row["prefix_tokens"] for row in lines(tmp_path / "eval/samples.jsonl")]
    assert len(prefixes) == 12 and 1 <= min(prefixes) and max(prefixes) <= 6

    run(model, tmp_path / "none", "--steps 1 --method grpo")
    run(model, tmp_path / "old", "--steps 2 --ring-size 4 --min-lag 3")
    for more, named in (
            ("none", "has no snapshots"), ("old", "is 3 steps old"), ("nowhere", "nowhere"),
            ("plain --temperature 0", "--temperature must be above 0"),
            (f"plain --model {tmp_path}/other", "another model")):
        random_model().save_pretrained(tmp_path / "other")
        AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "other")
        with pytest.raises(SystemExit):
            evaluation.main(f"{words} {tmp_path}/{more} --out {tmp_path}/refused".split())
        assert named in capsys.readouterr().err
        assert not (tmp_path / "refused").exists()


def test_seeded_inference_from_a_broken_run_is_a_line(model, tmp_path, capsys):
    """The path is named, before anything is sampled, whatever is wrong behind it."""
    run(model, tmp_path / "run", "--steps 3 --ring-size 3 --method grpo")
    config = json.loads((tmp_path / "run/config.json").read_text())
    lacking = {key: value for key, value in config.items() if key != "min_lag"}
    snapshots = tmp_path / "run/checkpoint-3"
    weights = load_file(snapshots / "snapshot-2.safetensors")
    name = min(weights)

    def broken(path, text, named, flags=""):
        kept = path.read_bytes()
        path.write_bytes(text if isinstance(text, bytes) else json.dumps(text).encode())
        words = f"--problems 2 --samples 2 --threads 1 {flags} --out {tmp_path}/eval --seed-from"
        with pytest.raises(SystemExit):
            evaluation.main([*words.split(), f"{tmp_path}/run"])
        line = capsys.readouterr().err.rpartition("error: ")[2]  # behind the bars of the library
        assert line.count("\n") == 1 and str(tmp_path / "run") in line and named in line
        assert not (tmp_path / "eval").exists()
        path.write_bytes(kept)

    for text, named, flags in (
            (config | {"prefix_min": 0, "prefix_max": 0}, "--prefix-max 0 ", ""),
            (config | {"prefix_min": 0.9}, "--prefix-min 0.9 is above", ""),
            (config, "--max-new-tokens 1 ", "--max-new-tokens 1"),
            (config | {"prefix_min": 0, "prefix_max": 0.02}, "-new-tokens 20 rounds",
             "--task countdown4 countdown"),  # the second task's cap
            ([], "config.json", ""), (b"{", "config.json", ""), (lacking, "min_lag", ""),
            (config | {"prefix_max": None}, "config.json", "")):
        broken(tmp_path / "run/config.json", text, named, flags)
    for tensors in (None, {**weights, name: weights[name][:1]},
                    {key: value for key, value in weights.items() if key != name}):
        broken(snapshots / "snapshot-2.safetensors", save(tensors) if tensors else b"broken",
               "snapshot-2")


def test_the_chosen_snapshot_arrives(model, tmp_path):
    for choice, taken in ("oldest", [0, 0, 0]), ("newest", [0, 1, 2]):
        run(model, tmp_path / choice, f"--steps 4 --snapshot-choice {choice}")
        samples = lines(tmp_path / choice / "samples.jsonl")
        assert [row["snapshot_step"] for row in samples[::2]] == [None, *taken]


def test_a_snapshot_that_added_nothing_is_not_named(model):
    """With `suffix` the policy may have ended its answer before the snapshot's turn."""
    args, tokenizer = Namespace(group_size=2), AutoTokenizer.from_pretrained(model)
    batch = Namespace(responses=lambda: [[3, 4], [3, 4]])
    drawn = Seeds([[3, 4], [3, 4]], [2, 1], [[], [-0.5]], step=7)
    rows = train.two_samples(
        args, [{"prompt": ""}], tokenizer, batch, drawn, torch.zeros(2))
    assert [row["snapshot_step"] for row in rows] == [None, 7]


def test_rewards_are_of_prefix_and_continuation_together(model, tmp_path, monkeypatch):
    """A continuation alone is the tail of a chain: every seeded row would count as wrong."""
    seen = []
    monkeypatch.setattr(train, "reward", lambda text, row: seen.append(text) or 0.5)
    run(model, tmp_path / "out", "--steps 2")
    samples = lines(tmp_path / "out" / "samples.jsonl")
    assert len(seen) == 2 * 8  # two steps of 2 x 4 rows: each once
    assert [bool(sample["prefix"]) for sample in samples] == [False, False, True, False]
    rows = [seen[step * 8 + i] for step in (0, 1) for i in (0, 3)]  # those that are recorded
    for text, sample in zip(rows, samples, strict=True):
        assert text == (sample["prefix"] + sample["continuation"]).removesuffix("<eos>")


def test_equal_rewards_move_nothing_by_default(model, tmp_path, monkeypatch):
    """torch's own default, a weight decay of 0.01, would shrink the policy without any signal."""
    monkeypatch.setattr(train, "reward", lambda text, row: 1.0)
    run(model, tmp_path / "out", "--steps 2 --learning-rate 1e-2")
    before, after = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict()
        for folder in (model, tmp_path / "out" / "model"))
    assert all(torch.equal(before[name], after[name]) for name in before)


# ------------------------------------------------------------------------------------- bad input


def refused(argv, out, capsys, seconds=5):
    """train.main(argv) ends soon, with code 2, one line, and nothing at out; returns the line."""
    with within(seconds), pytest.raises(SystemExit) as stop:
        train.main(argv)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "Traceback" not in error
    assert not out.exists()
    return error


@pytest.fixture
def no_model(monkeypatch):
    """What can be known early is told before minutes of loading."""
    def open_model(*args):
        raise AssertionError("a model was opened")

    monkeypatch.setattr(train, "open_model", open_model)


@pytest.mark.parametrize("flags", [
    "--method ppo",
    "--task chess",
    "--no-such-flag",
    "--step 3",  # an abbreviation of two flags today may be one of another tomorrow
    "--steps 0",
    "--steps x",
    "--group-size 1",
    "--prefix-max 0.5 --prefix-min 0.6",
    "--method sequence_mix --prefix-max 0.5 --prefix-min 0.6",
    "--method grpo --ring-size 4 --prefix-max 0",  # eval.py --seed-from would ask for them
    "--prefix-max 1.5",
    "--prefix-min -0.1",
    "--max-new-tokens 20 --prefix-min 0 --prefix-max 0.01",  # rounds to no token
    "--max-new-tokens 0",
    "--temperature 0",
    "--temperature nan",
    "--learning-rate inf",
    "--ring-size 0",
    "--ring-size 2 --snapshot-every 5 --min-lag 6",  # the oldest is 5 steps old at times
    "--method grpo --seed-fraction 0.5",
    "--eval-split validation --split test",
    "--eval-split tune --split tune",
    "--group-size 4 --seed-fraction 0.01",  # rounds to no row
    "--seed-fraction 1.2",
    "--prompts-per-step 2 --minibatches 3",
    "--device nonsense",
    pytest.param("--device cuda:7", marks=pytest.mark.skipif(
        torch.cuda.device_count() > 7, reason="there is such a device")),
])
def test_bad_flags_are_a_line(no_model, tmp_path, capsys, flags):
    """A typing error is told at once, with the flag and its value, not as a stack trace."""
    out = tmp_path / "out"
    line = refused(["--model", "none", "--out", str(out), *flags.split()], out, capsys)
    for word in flags.split()[-2:]:
        assert word in line


@pytest.mark.parametrize("flag", ["--eval-problems", "--train-problems"])
def test_more_problems_than_there_are_is_a_line(no_model, tmp_path, capsys, flag):
    """A split is finite; to search it without end looks like a crash. (It takes a few seconds.)"""
    out = tmp_path / "out"
    line = refused(["--model", "none", "--out", str(out), flag, "10000000"], out, capsys, 30)
    assert "10000000" in line


def test_a_run_overwrites_nothing(no_model, tmp_path, capsys):
    """The folder may be last night's run."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "metrics.jsonl").write_text("precious")
    line = refused(["--model", "none", "--out", str(tmp_path / "old")], tmp_path / "none", capsys)
    assert str(tmp_path / "old") in line
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["metrics.jsonl"]
    assert (tmp_path / "old" / "metrics.jsonl").read_text() == "precious"


def test_a_place_below_a_file_is_a_line(no_model, tmp_path, capsys):
    """The error of the operating system has another type here than for a folder that exists."""
    (tmp_path / "file").write_text("precious")
    out = tmp_path / "file" / "out"
    assert str(out) in refused(["--model", "none", "--out", str(out)], tmp_path / "none", capsys)
    assert (tmp_path / "file").read_text() == "precious"


def test_an_unwritable_place_is_a_line(no_model, capsys):
    """A full or read-only disk is found out before the training, not after."""
    out = Path("/sys/none/out")  # where not even root can make a folder
    assert str(out) in refused(["--model", "none", "--out", str(out)], out, capsys)


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_that_is_no_model_is_a_line(tmp_path, capsys, exists):
    """A mistyped path must not be looked up on the network for minutes."""
    out, folder = tmp_path / "out", tmp_path / "no-model"
    if exists:
        folder.mkdir()
    assert str(folder) in refused(["--model", str(folder), "--out", str(out)], out, capsys)


# ---------------------------------------------------------------------------------------- Ctrl-C


def test_ctrl_c_keeps_what_was_trained(model, tmp_path):
    """Whoever stops a run early wants its model and its curves."""
    out = tmp_path / "out"

    def two_steps(stderr):
        metrics = out / "metrics.jsonl"
        return metrics.exists() and metrics.read_text().count('"train"') >= 2

    code, stderr = interrupt(command(model, out, "--steps 10000"), tmp_path, two_steps)
    assert code == 130 and "Traceback" not in stderr
    steps = [row["step"] for row in rows_of(out, "train")]
    assert steps == list(range(len(steps))) and 2 <= len(steps) < 10000
    AutoModelForCausalLM.from_pretrained(out / "model")
    assert (out / "curves.png").exists()


def test_ctrl_c_in_the_warm_up_leaves_nothing(tmp_path):
    """The same command must work again, and no half-trained base may ever be found."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    seen = []

    def warming_up(stderr):
        if "warming up" in stderr:
            seen.append((out.exists(), len(list(cache.iterdir()))))
        return seen

    code, stderr = interrupt(
        command("tiny", out, "--base-steps 100000"), tmp_path, warming_up,
        {**os.environ, "THINKING_SEEDS_CACHE": str(cache)})
    assert code == 130 and "Traceback" not in stderr
    assert seen == [(True, 1)]
    assert not out.exists() and list(cache.iterdir()) == []


def test_two_runs_started_at_once_do_not_share_a_folder(model, tmp_path):
    """Both would append to one metrics.jsonl: every step twice, from two policies."""
    out = tmp_path / "out"
    out.mkdir()
    argv = command(model, out, "--steps 1")
    both = [subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(2)]
    assert sorted(process.wait(timeout=120) for process in both) == [0, 2]
    assert len(rows_of(out, "train")) == 1


def test_metrics_hold_no_nan(tmp_path):
    """Python would write NaN, and then no other JSON reader could open the run."""
    with pytest.raises(ValueError):
        train.runs.append(tmp_path / "metrics.jsonl", {"loss": float("nan")})
