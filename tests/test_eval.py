"""eval.py: the numbers that every comparison of two policies is read from."""

import itertools
import json
import re

import pytest
import torch

import eval as evaluation
from eval import bootstrap_interval, evaluate, majority, metrics_of, pass_at_k, table
from tasks import countdown
from tasks.problems import load_problems


def pass_by_counting(right, k):
    """The share of all k-subsets of the samples with a right one among them."""
    subsets = list(itertools.combinations(right, k))
    return sum(map(any, subsets)) / len(subsets)


# ------------------------------------------------------------------------ pass@k, its interval


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_k_subsets(n):
    """1 - (1 - c/n)^k, the formula that comes to mind first, is another number."""
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        expected = pass_by_counting([i < c for i in range(n)], k)
        assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_at_its_edges():
    """None right is 0, and all samples drawn are right as soon as one is: exactly, not nearly."""
    for n in (1, 16, 256):
        assert pass_at_k(n, 0, 1) == pass_at_k(n, 0, n) == 0.0
        assert pass_at_k(n, 1, n) == pass_at_k(n, n, 1) == 1.0
        assert pass_at_k(n, 1, 1) == pytest.approx(1 / n)


def test_the_interval_of_a_constant_is_that_constant():
    """No spread between problems, no interval; a formula with its own prior would have one."""
    for value in (0.0, 0.3, 1.0):
        assert bootstrap_interval([value] * 12) == pytest.approx([value, value], abs=1e-12)
    assert bootstrap_interval([0.25]) == [0.25, 0.25]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_interval_is_around_the_mean_and_narrows(share):
    """Four times the problems, half the width, as for the normal approximation 3.92 sd/sqrt(N)."""
    widths = []
    for n in (100, 400):
        low, high = bootstrap_interval([1.0] * round(share * n) + [0.0] * round((1 - share) * n))
        assert 0 <= low < share < high <= 1
        assert high - low == pytest.approx(3.92 * (share * (1 - share) / n) ** 0.5, rel=0.15)
        widths.append(high - low)
    assert widths[1] < 0.6 * widths[0]


def test_the_interval_takes_no_draw_from_the_global_generator():
    """train.py evaluates between steps; the next rollout must not notice."""
    values = [0.0, 0.5, 1.0, 0.25]
    torch.manual_seed(3)
    state, first = torch.get_rng_state(), bootstrap_interval(values)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    assert bootstrap_interval(values) == first  # nor does it depend on it


# -------------------------------------------------------------------------------------- evaluate


@pytest.fixture(scope="module")
def policy():
    """(model, tokenizer) of a policy that has learnt next to nothing: a bit of everything."""
    return countdown.warm_up(1, 3)


@pytest.fixture
def lenient(monkeypatch):
    """A reward that even this policy sometimes gets, and solutions that are sometimes equal."""
    monkeypatch.setattr(evaluation, "reward", lambda text, row: float(len(text) % 2 == 0))
    monkeypatch.setattr(evaluation, "solution_key", lambda text, row: str(len(text)))


def run(policy, samples=8, temperature=1.0, batch_size=64, key=(0, 0), ks=(1,), cap=6, problems=4):
    """evaluate's metrics and what it wrote."""
    rows, written = load_problems("countdown", "test", problems, seed=0), []
    metrics = evaluate(
        *policy, rows, samples, cap, temperature, batch_size, key, ks, written.append
    )
    return metrics, written


def by_problem(written, problems):
    return [[sample for sample in written if sample["problem"] == i] for i in range(problems)]


@pytest.mark.parametrize("batch_size", [32, 5, 1])
def test_metrics_are_those_of_the_samples(policy, lenient, batch_size):
    """All again from what was written; 5 divides neither the samples nor those of a problem."""
    ks = [1, 3, 8]
    metrics, written = run(policy, batch_size=batch_size, ks=ks)
    rows = load_problems("countdown", "test", 4, seed=0)
    groups = by_problem(written, 4)
    assert [len(group) for group in groups] == [8] * 4 and len(written) == 32
    for row, group in zip(rows, groups, strict=True):
        assert {sample["prompt"] for sample in group} == {row["prompt"]}
    for sample in written:
        assert sample["reward"] == float(len(sample["response"]) % 2 == 0)
        assert 1 <= sample["tokens"] <= 6 and (sample["tokens"] == 6 or not sample["cut_off"])
    assert metrics["problems"] == 4 and metrics["samples"] == 8
    for k in ks:
        values = [pass_by_counting([s["reward"] for s in group], k) for group in groups]
        assert metrics[f"pass@{k}"] == pytest.approx(sum(values) / 4)
        interval = [metrics[f"pass@{k}_low"], metrics[f"pass@{k}_high"]]
        assert interval == pytest.approx(bootstrap_interval(values))
    distinct = [{len(s["response"]) for s in group if s["reward"]} for group in groups]
    assert metrics["distinct_correct"] == sum(map(len, distinct)) / 4
    assert metrics["length"] == sum(s["tokens"] for s in written) / 32
    assert metrics["cut_off"] == sum(s["cut_off"] for s in written) / 32
    assert 0 < metrics["pass@1"] < 1 and 0 < metrics["cut_off"] < 1 and metrics["seconds"] > 0
    assert 0 < metrics["distinct_correct"] < metrics["pass@1"] * 8  # some right ones are equal


def test_known_responses_by_the_real_reward(policy, monkeypatch):
    """From ids to pass@k: the end token is no part of an answer, other special tokens spoil it."""
    model, tokenizer = policy
    row = {"prompt": "3 4 5>17:", "numbers": [3, 4, 5], "target": 17, "task": "countdown"}
    texts = ["3*4=12,12+5=17<eos>", "4*3=12,5+12=17<eos>", "3*4=12,12+5=17", "3*4=12,12+5=1<eos>",
             "3*4=12<pad>,12+5=17<eos>", "<eos>"]  # of the right ones, the third lacks its end
    ids = [tokenizer(text)["input_ids"] for text in texts]
    monkeypatch.setattr(evaluation, "sample", lambda *args: ids)
    written = []
    metrics = evaluate(model, tokenizer, [row], 6, 20, 1.0, 6, (0,), [1, 4], written.append)
    assert [sample["reward"] for sample in written] == [1, 1, 1, 0, 0, 0]
    assert [sample["response"] for sample in written] == [t.removesuffix("<eos>") for t in texts]
    assert metrics["pass@1"] == 0.5 and metrics["pass@4"] == 1.0
    assert metrics["distinct_correct"] == 1  # all three are the same solution
    assert metrics["cut_off"] == 1 / 6
    assert metrics["length"] == (15 + 15 + 14 + 14 + 16 + 1) / 6


def test_a_partial_reward_is_not_right(policy, monkeypatch):
    """A task may give 0.5 for the format; pass@k counts answers."""
    monkeypatch.setattr(evaluation, "reward", lambda text, row: 0.5)
    metrics, written = run(policy)
    assert metrics["pass@1"] == metrics["distinct_correct"] == 0
    assert {sample["reward"] for sample in written} == {0.5}


def test_each_response_is_rewarded_by_its_own_problem(policy, monkeypatch):
    """A shift by one between chunk and rows would show as nothing but a bad policy."""
    rows = load_problems("countdown", "test", 4, seed=0)
    right = rows[2]["prompt"]
    monkeypatch.setattr(evaluation, "reward", lambda text, row: float(row["prompt"] == right))
    monkeypatch.setattr(evaluation, "solution_key", lambda text, row: row["prompt"])
    metrics, written = run(policy, batch_size=7)
    assert [s["problem"] for s in written if s["reward"]] == [2] * 8
    assert metrics["pass@1"] == metrics["distinct_correct"] == 0.25


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_entropy_is_that_of_the_sampled_tokens(policy, temperature):
    """Row by row without padding: a mask that is off by one counts padding, or forgets the end."""
    model, tokenizer = policy
    metrics, written = run(policy, temperature=temperature, batch_size=5)
    total, lengths = 0.0, set()
    for sample in written:
        prompt = tokenizer(sample["prompt"])["input_ids"]
        ids = tokenizer(sample["response"])["input_ids"]
        ids += [] if sample["cut_off"] else [tokenizer.eos_token_id]
        assert len(ids) == sample["tokens"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        p = (logits / temperature).softmax(-1)
        total -= (p * p.log()).sum().item()
        lengths.add(len(ids))
    assert len(lengths) > 1
    assert metrics["entropy"] == pytest.approx(total / sum(s["tokens"] for s in written), rel=1e-4)


def test_greedy_is_deterministic(policy):
    """Temperature 0: no draw, so no seed and no batch size matters, and there is no entropy."""
    metrics, written = run(policy, samples=1, temperature=0)
    assert metrics["entropy"] is None and metrics["length"] > 0
    for key, batch_size in (((1, 0), 64), ((0, 0), 3)):
        assert run(policy, samples=1, temperature=0, key=key, batch_size=batch_size)[1] == written


def test_the_samples_are_a_function_of_the_key(policy):
    """Before and after training, and for two methods, the same draws: only the policy differs."""
    torch.manual_seed(1)
    metrics, written = run(policy, key=(0, 5, "evaluation"))
    torch.manual_seed(2)
    again = run(policy, key=(0, 5, "evaluation"))
    assert again[1] == written
    assert {**again[0], "seconds": 0} == {**metrics, "seconds": 0}
    for key in ((1, 5, "evaluation"), (0, 6, "evaluation"), (0, 5, "rollout")):
        assert run(policy, key=key)[1] != written
    for group in by_problem(written, 4):
        assert len({sample["response"] for sample in group}) > 2  # and they are not copies


# ----------------------------------------------------------------------------------------- table


def test_every_number_of_the_table_is_a_metric():
    """Read back from the text: low and high, or two columns, are easily mistaken for each other."""
    first = {
        "problems": 31, "samples": 16, "pass@1": 0.2512, "pass@1_low": 0.1999, "pass@1_high": 0.3,
        "pass@16": 0.8126, "pass@16_low": 0.7, "pass@16_high": 0.9, "distinct_correct": 3.456,
        "entropy": 1.2344, "length": 14.25, "length_p95": 20, "cut_off": 0.0625, "seconds": 77.7,
    }
    second = {**first, "pass@1": 0.0, "pass@1_low": 0.0, "entropy": None, "problems": 7}
    results = {"before": first, "after it all": second}
    head, *lines = table(results).splitlines()
    assert re.split(r"\s{2,}", head.strip()) == list(results)
    seen = []
    for line in lines:
        name, *cells = re.split(r"\s{2,}", line.strip())
        seen.append(name)
        for cell, m in zip(cells, results.values(), strict=True):
            numbers = [float(x) for x in re.findall(r"\d+\.\d{3}|\d+", cell)]
            if f"{name}_low" in m:
                expected = [m[name], m[f"{name}_low"], m[f"{name}_high"]]
            else:
                expected = [] if m[name] is None else [m[name]]
            assert numbers == pytest.approx(expected, abs=6e-4), name
        # The columns stand under their names.
        for label in results:
            at = head.index(label)
            assert line[at - 1] == " " and line[at] != " "
    assert seen == [name for name in first if not name.endswith(("_low", "_high"))]


def test_a_vote_by_hand():
    """The most frequent answer wins, a draw is shared, and who says nothing has no vote."""
    assert majority(["a", "b", "b"], [True, False, False]) == 0
    assert majority(["a", "b", "b"], [False, True, True]) == 1
    assert majority(["a", "b", "b", "a"], [True, False, False, True]) == 0.5
    assert majority([None, None, None, "a"], [False, False, False, True]) == 1
    assert majority([None, None], [False, False]) == 0


def test_metrics_by_hand():
    """Two problems, twenty samples each; every number can be counted."""
    def sample(answer, reward, tokens, undecided=False):
        return {"answer": answer, "reward": reward, "tokens": tokens, "undecided": undecided,
                "entropy": tokens / 10, "cut_off": tokens == 20}

    groups = [
        [sample("a", 1.0, t) for t in range(1, 12)] + [sample(None, 0.0, t) for t in range(12, 21)],
        [sample("b", 0.5, 20, True)] * 12 + [sample("c", 2.0, 20)] * 4 + [sample("d", 1.0, 20)] * 4,
    ]
    metrics = metrics_of(groups, [{"task": "countdown"}] * 2, [1, 20])
    entropy = (sum(t * t / 10 for t in range(1, 21)) + 20 * 20 * 2.0) / (210 + 400)
    assert {key: metrics[key] for key in metrics if not key.endswith(("low", "high"))} == {
        "problems": 2, "samples": 20, "pass@1": pytest.approx((11 / 20 + 8 / 20) / 2),
        "pass@20": 1.0, "avg@20": pytest.approx((11 / 20 + 8 / 20) / 2), "maj@20": 0.5,
        "distinct": 2.0, "distinct_correct": 1.5, "no_answer": 9 / 40, "undecided": 12 / 40,
        "entropy": pytest.approx(entropy), "length": 610 / 40, "length_p95": 20,
        "cut_off": 21 / 40}
    short = [[sample("a", 1.0, t) for t in range(1, 21)]]
    assert metrics_of(short, [{"task": "countdown"}], [1])["length_p95"] == 19


# ------------------------------------------------------------------------------------ the script


@pytest.fixture(scope="module")
def checkpoint(policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    for part in policy:
        part.save_pretrained(folder)
    return folder


@pytest.fixture
def flags(checkpoint, tmp_path):
    """Flags of a tiny evaluation into tmp_path/out; gives the CPU its threads back."""
    threads = torch.get_num_threads()
    yield [
        "--model", str(checkpoint), "--out", str(tmp_path / "out"), "--problems", "4",
        "--samples", "3", "--k", "1", "3", "--max-new-tokens", "6", "--threads", "1",
    ]
    torch.set_num_threads(threads)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys, argv):
    """The one line on stderr with which main refuses these flags."""
    with pytest.raises(SystemExit) as error:
        evaluation.main(argv)
    out, err = capsys.readouterr()
    assert error.value.code == 2 and out == ""
    assert err.count("\n") == 1 and err.startswith("error: ") and err.endswith("\n")
    return err


def jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_main_leaves_config_metrics_and_samples(flags, lenient, tmp_path, capsys):
    """What was run, what came out, and each sample, so that every number can be checked later."""
    evaluation.main([*flags, "--rng-seed", "5", "--batch-size", "7"])
    folder = tmp_path / "out"
    assert set(contents(folder)) == {"config.json", "metrics.jsonl", "samples.jsonl"}
    config = json.loads((folder / "config.json").read_text())
    expected = {"task": ["countdown"], "split": "test", "problems": 4, "samples": 3, "k": [1, 3],
                "max_new_tokens": {"countdown": 6}, "rng_seed": 5, "batch_size": 7,
                "temperature": 1.0}
    assert {key: config[key] for key in expected} == expected
    assert config["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    samples, rows = jsonl(folder / "samples.jsonl"), load_problems("countdown", "test", 4, seed=0)
    assert [s["prompt"] for s in samples] == [row["prompt"] for row in rows for _ in range(3)]
    (metrics,) = jsonl(folder / "metrics.jsonl")
    assert metrics["kind"] == "eval" and metrics["task"] == "countdown"
    assert metrics["length"] == sum(s["tokens"] for s in samples) / 12
    assert 0 < metrics["pass@1"] < metrics["pass@3"]
    for k in (1, 3):
        values = [pass_by_counting([s["reward"] for s in g], k) for g in by_problem(samples, 4)]
        assert metrics[f"pass@{k}"] == pytest.approx(sum(values) / 4)
    metrics = {key: metrics[key] for key in metrics if key not in ("kind", "task")}
    assert table({"countdown": metrics}) in capsys.readouterr().out


def test_main_samples_the_same_twice(flags, tmp_path):
    """The second command of a README must print what it says there; --rng-seed is the only luck."""
    texts = []
    for i, seed in enumerate("001"):
        evaluation.main([*flags, "--out", str(tmp_path / str(i)), "--rng-seed", seed])
        texts.append((tmp_path / str(i) / "samples.jsonl").read_text())
    assert texts[0] == texts[1] != texts[2]


def test_main_never_writes_into_an_existing_folder(flags, tmp_path, capsys):
    """Two evaluations in one samples.jsonl could not be told apart, nor a lost one be had back."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "samples.jsonl").write_text("a week of work\n")
    before = contents(folder)
    assert str(folder) in refused(capsys, flags)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "bad, named",
    [
        (["--k", "32", "--samples", "16"], "32"),
        (["--k", "1", "4"], "4"),  # three samples
        (["--task", "chess"], "chess"),
        (["--split", "validation"], "validation"),
        (["--problems", "0"], "0"),
        (["--temperature", "nan"], "nan"),
        (["--temperature", "-1"], "-1"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_main_refuses_what_makes_no_sense(flags, tmp_path, capsys, monkeypatch, bad, named):
    """In one line that names the value, before a minute of work, and without a folder behind."""
    monkeypatch.setattr(evaluation, "open_model", None)  # it does not get that far
    assert named in refused(capsys, [*flags, *bad])
    assert not (tmp_path / "out").exists()


def test_main_refuses_more_problems_than_there_are(flags, tmp_path, capsys, monkeypatch):
    """A shorter evaluation than asked for would be compared with full ones."""
    monkeypatch.setattr(countdown, "random_game", lambda rng, n: ([1, 3, 19], 23, ""))  # one game
    assert "4 test problems" in refused(capsys, flags)
    assert not (tmp_path / "out").exists()


def test_main_without_a_model_leaves_no_folder(flags, tmp_path, capsys):
    """The same command must work once the path is right, instead of `--out cannot be made`."""
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(capsys, [*flags, "--model", str(tmp_path / "empty")])
    assert not (tmp_path / "out").exists()


def test_greedy_is_one_sample_a_problem(flags):
    """Sixteen copies of one response would be reported as pass@16."""
    args = evaluation.parse_args([*flags, "--temperature", "0", "--samples", "16", "--k", "16"])
    assert (args.samples, args.k) == (1, [1])
    args = evaluation.parse_args(["--samples", "20"])
    assert args.k == [1, 4, 16, 20]
