"""Commands that inspect models: their output agrees with the file and the model."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch

from kinfolk.cli.perplexity import windows
from kinfolk.engine import preparing
from kinfolk.gguf.values import Value


@pytest.fixture
def case(cases):
    return np.load(cases / "qwen35.npz")


# -- inspect --------------------------------------------------------------------------------------


def test_inspect_shows_metadata_tensors_and_family(kinfolk, model):
    report = json.loads(kinfolk("inspect", model, "--json").stdout)
    assert report["architecture"] == report["family"] == "qwen35"
    assert report["metadata"]["qwen35.block_count"] == 5
    assert report["metadata"]["tokenizer.ggml.tokens"]["length"] == 768
    embedding = next(t for t in report["tensors"] if t["name"] == "token_embd.weight")
    assert embedding["shape"][0] == 768
    assert sum(tensor["bytes"] for tensor in report["tensors"]) == report["bytes"]
    assert sum(report["types"].values()) == report["bytes"]


def test_inspect_prints_a_line_for_everything(kinfolk, model):
    output = kinfolk("inspect", model).stdout
    assert "qwen35.block_count" in output
    assert "blk.0.attn_norm.weight" in output
    assert "blk.0" not in kinfolk("inspect", model, "--no-tensors").stdout


def test_inspect_shows_a_file_that_no_family_claims(kinfolk, model, monkeypatch):
    monkeypatch.setenv("KINFOLK_PLUGINS", "")
    result = kinfolk("inspect", model, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["family"] is None
    assert "no installed family" in report["problem"]


def test_inspect_writes_json_of_numbers_that_are_none(kinfolk, damaged):
    path = damaged("qwen35.rope.freq_base", Value("f32", float("nan")))

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    report = json.loads(kinfolk("inspect", path, "--json").stdout, parse_constant=refuse)
    assert report["metadata"]["qwen35.rope.freq_base"] == "nan"


@pytest.mark.parametrize(
    ("name", "value", "range_"),
    [
        ("rope.freq_base", Value("f32", 0.0), "above 1 and at most 1e+15"),
        ("attention.layer_norm_rms_epsilon", Value("f32", -1.0), "above 0 and at most 1"),
        ("attention.head_count", Value("i32", -1), "at least 0"),
        ("block_count", Value("u32", 300_000_000), "1 to 1024"),
    ],
)
def test_a_number_that_cannot_be_is_one_line_with_key_and_range(
    kinfolk, damaged, name, value, range_
):
    done = kinfolk("plan", damaged(f"qwen35.{name}", value), "--device", "cpu")
    assert done.exit_code == 2
    assert f"damaged.gguf: key 'qwen35.{name}' is " in done.stderr
    assert f"expected {range_}" in done.stderr
    assert "bug of kinfolk" not in done.stderr


# -- tokenize -------------------------------------------------------------------------------------


def test_tokenize_prints_ids_that_stand_for_the_text(kinfolk, model):
    text = "Hello wörld\n"
    ids = json.loads(kinfolk("tokenize", model, "--json", "--text", text).stdout)
    assert ids == json.loads(kinfolk("tokenize", model, "--json", stdin=text).stdout)
    lines = kinfolk("tokenize", model, "--text", text).stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == ids
    pieces = [eval(line.split(maxsplit=1)[1]) for line in lines]
    raw = b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
    assert raw.decode() == text


def test_tokenize_takes_special_tokens_whole_unless_told_otherwise(kinfolk, model):
    whole = json.loads(kinfolk("tokenize", model, "--json", "--text", "<|im_end|>").stdout)
    spelled = kinfolk("tokenize", model, "--json", "--no-special", "--text", "<|im_end|>").stdout
    assert len(whole) == 1
    assert len(json.loads(spelled)) > 1


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"a\0b", b"a\r\n\tb "])
def test_tokenize_takes_any_bytes_if_told_to(kinfolk, model, raw):
    result = kinfolk("tokenize", model, "--json", "--errors", "replace", stdin=raw)
    assert result.exit_code == 0
    assert (json.loads(result.stdout) == []) == (raw == b"")


# -- logits ---------------------------------------------------------------------------------------


def scored(kinfolk, model, tmp_path, tokens, *options):
    np.save(tmp_path / "tokens.npy", tokens)
    out = tmp_path / "logits.npy"
    result = kinfolk("logits", model, "--tokens", tmp_path / "tokens.npy", "--out", out, *options)
    assert result.exit_code == 0, result.stderr
    return np.load(out)


@pytest.mark.parametrize("chunk", [1, 7, 64, 160])
def test_logits_equal_those_of_the_reference(kinfolk, model, case, tmp_path, chunk):
    found = scored(kinfolk, model, tmp_path, case["tokens"], "--chunk", chunk, "--dtype", "f32")
    assert (found.dtype, found.shape) == (np.float32, case["logits"].shape)
    error = np.abs(found - case["logits"]).max(1) / np.abs(case["logits"]).max(1)
    assert error.max() <= 2e-4


def test_logits_of_one_token_are_one_row(kinfolk, model, case, tmp_path):
    assert scored(kinfolk, model, tmp_path, case["tokens"][:1]).shape == (1, 768)


def test_logits_leave_no_half_file(kinfolk, model, tmp_path, case, monkeypatch):
    np.save(tmp_path / "tokens.npy", case["tokens"])
    out = tmp_path / "logits.npy"
    out.write_bytes(b"an older result")
    import kinfolk.engine.score as module

    def failing(loaded, tokens, **options):
        import torch

        yield torch.zeros(2, 768)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "logits", failing)
    result = kinfolk("logits", model, "--tokens", tmp_path / "tokens.npy", "--out", out)
    assert result.exit_code == 1
    assert "No space left" in result.stderr
    assert out.read_bytes() == b"an older result"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logits.npy", "tokens.npy"]


@pytest.mark.parametrize(
    ("tokens", "word"),
    [
        (np.array([1.5, 2.5]), "expected integers [n]"),
        (np.array([[1, 2]]), "expected integers [n]"),
        (np.array([], np.int32), "holds no tokens"),
        (np.array([1, 768]), "between 0 and 767"),
        (np.array([-1, 2]), "between 0 and 767"),
        (np.zeros(5000, np.int32), "context"),
    ],
)
def test_tokens_that_cannot_be_scored_are_told(kinfolk, model, tmp_path, tokens, word):
    np.save(tmp_path / "tokens.npy", tokens)
    out = tmp_path / "logits.npy"
    result = kinfolk("logits", model, "--tokens", tmp_path / "tokens.npy", "--out", out)
    assert result.exit_code == 2
    assert word in result.stderr
    assert not out.exists()


@pytest.mark.parametrize("text", ["hello", "PK\3\4hello"])
def test_a_file_that_holds_no_array_is_told(kinfolk, model, tmp_path, text):
    (tmp_path / "x.npy").write_text(text)
    result = kinfolk("logits", model, "--tokens", tmp_path / "x.npy", "--out", tmp_path / "l.npy")
    assert result.exit_code == 2
    assert "x.npy" in result.stderr


def test_a_folder_that_is_not_there_is_told_before_loading(kinfolk, tmp_path, case):
    np.save(tmp_path / "tokens.npy", case["tokens"])
    out = tmp_path / "nowhere" / "l.npy"
    result = kinfolk("logits", "no.gguf", "--tokens", tmp_path / "tokens.npy", "--out", out)
    assert f"the directory {out.parent} does not exist" in result.stderr


# -- perplexity -----------------------------------------------------------------------------------


def test_perplexity_is_that_of_the_logits(kinfolk, model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("def f(x):\n    return x + 1  # grün\n" * 3)
    report = json.loads(kinfolk("perplexity", model, text, "--json", "--dtype", "f32").stdout)
    ids = json.loads(kinfolk("tokenize", model, "--json", stdin=text.read_text()).stdout)
    rows = scored(kinfolk, model, tmp_path, np.array(ids), "--dtype", "f32").astype(np.float64)
    top = rows.max(1)
    losses = top + np.log(np.exp(rows - top[:, None]).sum(1))
    losses = losses[:-1] - rows[np.arange(len(ids) - 1), ids[1:]]
    assert report["tokens"] == len(ids) - 1
    assert report["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-4)
    bits = losses.sum() / math.log(2) / report["bytes"]
    assert report["bits_per_byte"] == pytest.approx(bits, rel=1e-4)
    assert report["bytes"] < len(text.read_bytes())


@pytest.mark.parametrize("count", [1, 2, 10, 11, 25])
@pytest.mark.parametrize("stride", [1, 3, 10])
def test_windows_count_a_token_once_and_never_the_first_of_a_window(count, stride):
    spans = list(windows(count, 10, stride))
    counted = [token for _, stop, first in spans for token in range(first, stop)]
    assert len(counted) == len(set(counted))
    assert all(start < first < stop <= start + 10 for start, stop, first in spans)
    if stride < 10:
        assert counted == list(range(1, count))
    else:
        assert counted == [token for token in range(count) if token % 10]


@pytest.mark.parametrize(("stride", "context"), [(3000, None), (11, 10), (4097, 5000)])
def test_windows_without_a_part_of_the_text_are_refused(kinfolk, model, tmp_path, stride, context):
    text = tmp_path / "text.txt"
    text.write_text("one two three")
    size = () if context is None else ("-c", context)
    result = kinfolk("perplexity", model, text, "--stride", stride, *size)
    assert result.exit_code == 2
    assert f"--stride {stride} is larger than the windows" in result.stderr


def test_windows_of_one_token_are_refused(kinfolk, model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("one two three")
    result = kinfolk("perplexity", model, text, "-c", 1)
    assert result.exit_code == 2
    assert "--context must be at least 2" in result.stderr


def test_a_text_of_one_token_cannot_be_scored(kinfolk, model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a")
    result = kinfolk("perplexity", model, text)
    assert result.exit_code == 2
    assert "two tokens" in result.stderr


# -- bench ----------------------------------------------------------------------------------------


def test_bench_reports_medians_of_fresh_repeats(kinfolk, model):
    arguments = ("--prompt", 20, "--generate", 5, "--sequences", 3, "--repeats", 2)
    result = kinfolk("bench", "-m", model, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["workload"]["sequences"] == 3
    assert len(report["runs"]) == report["repeats"] == 2
    assert report["prompt_tokens_per_second"] > 0
    # One repeat is not counted; no repeat reuses the prompt of another.
    assert report["engine"]["prefill_rows"] == 3 * 3 * 20
    assert report["machine"]["dtype"] == "float32"
    assert report["engine"]["waits"] == report["engine"]["steps"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--prompt", 5000), "--prompt 5000 with --generate 128 needs 5128 positions"),
        (("--prompt", 50, "-c", 60), "which is more than --context 60"),
    ],
)
def test_bench_refuses_what_does_not_fit_in_the_words_of_its_own_flags(
    kinfolk, model, options, said, caplog
):
    result = kinfolk("bench", "-m", model, *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert caplog.text == ""


def test_a_context_that_nobody_asked_for_is_not_warned_about(
    kinfolk, model, tmp_path, caplog, monkeypatch
):
    """Windows of 2048 tokens are a default, and a model may have less."""
    monkeypatch.setattr("kinfolk.cli.perplexity.WINDOW", 5000)
    text = tmp_path / "text.txt"
    text.write_text("one two three")
    assert json.loads(kinfolk("perplexity", model, text, "--json").stdout)["window"] == 4096
    assert caplog.text == ""
    assert kinfolk("perplexity", model, text, "-c", 5000).exit_code == 0
    assert "--context 5000" in caplog.text


def test_bench_measures_steps_of_several_rows_in_fixed_sizes(kinfolk, model):
    arguments = ("--prompt", 9, "--generate", 6, "--rows", 4, "--repeats", 1, "--graphs", "on")
    result = kinfolk("bench", "-m", model, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["workload"]["rows"] == 4
    assert report["engine"]["replays"] >= 2 * 3
    assert report["engine"]["eager_steps"] == 0
    assert report["uncapturable_ops"] == {}
    (run,) = report["runs"]
    assert 0 < run["steps"] <= 5
    assert "replays" in kinfolk("bench", "-m", model, *arguments).stdout


# -- plugins and doctor ---------------------------------------------------------------------------


def test_plugins_lists_ours_with_what_they_bring(kinfolk):
    listed = {item["name"]: item for item in json.loads(kinfolk("plugins", "--json").stdout)}
    assert {"kinfolk", "qwen35", "qwen35moe", "gemma4", "laguna"} <= set(listed)
    assert listed["qwen35"]["provides"]["families"] == ["qwen35"]
    assert "ngram" in listed["kinfolk"]["provides"]["drafters"]
    assert "families: qwen35" in kinfolk("plugins").stdout


def test_doctor_computes_and_names_what_ran(kinfolk, model):
    result = kinfolk("doctor", "-m", model, "--json", "--op", "linear=reference")
    assert result.exit_code == 0, result.stdout
    checks = {(c["area"], c["name"]): c for c in json.loads(result.stdout)}
    assert "8 tokens" in checks["computation", "Qwen35 Hf"]["detail"]
    assert checks["ops", "linear"]["detail"] == "reference"
    assert checks["versions", "torch"]["status"] == "ok"
    assert checks["devices", "cpu"]["status"] == "ok"
    assert "no GPU" in checks["graphs", "decoding"]["detail"]


def test_doctor_says_what_is_wrong_and_leaves_with_1(kinfolk, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 40)
    result = kinfolk("doctor", "-m", broken)
    assert result.exit_code == 1
    assert "broken.gguf" in result.stdout
    assert "1 failed" in result.stdout


def test_doctor_without_any_family_warns_that_it_tried_no_model(kinfolk, monkeypatch):
    monkeypatch.setenv("KINFOLK_PLUGINS", "")
    result = kinfolk("doctor", "--json")
    assert result.exit_code == 0
    (check,) = (c for c in json.loads(result.stdout) if c["area"] == "computation")
    assert check["status"] == "warning"
    assert "-m" in check["detail"]


@pytest.mark.parametrize("gpu", [False, True])
def test_doctor_misses_triton_only_where_there_is_a_gpu(kinfolk, model, monkeypatch, gpu):
    from kinfolk.cli import doctor

    def version(name):
        if name == "triton":
            raise doctor.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor.metadata, "version", version)
    monkeypatch.setattr(doctor, "_has_gpu", lambda: gpu)
    checks = {check.name: check for check in doctor.versions()}
    assert checks["triton"].status == ("warning" if gpu else "ok")
    assert "not installed" in checks["triton"].detail


def test_doctor_has_nothing_against_a_choice_of_plugins(kinfolk, model, monkeypatch):
    monkeypatch.setenv("KINFOLK_PLUGINS", "qwen35")
    result = kinfolk("doctor", "-m", model)
    assert re.search(r"gemma4 +skipped: not named in KINFOLK_PLUGINS\n", result.stdout)
    assert result.stdout.endswith("all checks passed\n")


def test_doctor_does_not_say_that_all_is_well_below_a_warning(kinfolk, model, monkeypatch):
    assert kinfolk("doctor", "-m", model).stdout.endswith("all checks passed\n")
    monkeypatch.setenv("KINFOLK_SLOT", "3")
    result = kinfolk("doctor", "-m", model)
    assert result.exit_code == 0
    assert result.stdout.endswith("\n1 warning\n")


def test_doctor_finds_a_device_that_computes_wrong_numbers(kinfolk, model, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "ones", lambda *shape, **rest: torch.full(shape, 0.5))
    result = kinfolk("doctor", "-m", model)
    assert result.exit_code == 1
    assert "computes wrong numbers" in result.stdout


# -- convert and synth ----------------------------------------------------------------------------


def test_convert_tells_what_it_cannot_use(kinfolk, tmp_path):
    result = kinfolk("convert", tmp_path / "nowhere", tmp_path / "out.gguf")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
    result = kinfolk("convert", tmp_path, tmp_path / "out.gguf", "--outtype", "q3_x")
    assert result.exit_code == 2
    assert "--outtype" in result.stderr
    result = kinfolk("convert", tmp_path, tmp_path / "out.gguf", "--model-family", "none")
    assert result.exit_code == 2
    assert "--model-family none" in result.stderr


def test_synth_lists_shapes_and_writes_a_model_that_runs(kinfolk, tmp_path):
    shapes = json.loads(kinfolk("synth", "--list", "--json").stdout)
    smallest = next(shape for shape in shapes if shape["family"] == "qwen35")
    assert smallest["name"] in kinfolk("synth", "--list").stdout
    out = tmp_path / "tiny.gguf"
    result = kinfolk("synth", smallest["name"], out, "--layers", 1, "--json")
    assert result.exit_code == 0, result.stderr
    written = json.loads(result.stdout)
    assert written["layers"] == 1
    report = json.loads(kinfolk("inspect", out, "--json").stdout)
    assert report["bytes"] == written["bytes"]
    assert report["family"] == smallest["family"]
    again = kinfolk("synth", smallest["name"], out, "--layers", 1)
    assert again.exit_code == 2
    assert "tiny.gguf" in again.stderr


def test_synth_needs_a_shape_and_a_file(kinfolk, tmp_path):
    assert "--list" in kinfolk("synth").stderr
    result = kinfolk("synth", "gpt-7", tmp_path / "x.gguf")
    assert result.exit_code == 2
    assert "choose one of" in result.stderr


def test_plan_says_what_a_model_takes_and_what_fits(kinfolk, model):
    done = kinfolk("plan", model, "--slots", 3, "--memory", 1)
    assert done.exit_code == 0, done.output
    for part in ("weights", "work space", "left to others", "keys and values", "3, and 8 check"):
        assert part in done.stdout
    report = json.loads(kinfolk("plan", model, "--memory", 1, "--json").stdout)
    assert report["usable"] == 2**30
    assert report["total"] == sum(report["parts"].values())
    assert report["total"] + report["left_to_others"] <= report["usable"]


def test_plan_counts_the_spare_slot_of_a_gpu(kinfolk, model, monkeypatch):
    gpu = torch.device("cuda", 0), torch.bfloat16, 2**33
    monkeypatch.setattr(preparing, "_place", lambda settings, there: gpu)
    options = ("plan", model, "--cache-memory", 0.5, "--draft", "off")
    assert ", and 2 checkpoints, 1 spare slot" in kinfolk(*options).stdout
    found = [
        json.loads(kinfolk(*options, "--checkpoints", count, "--json").stdout)["parts"]
        for count in (0, 1, 2, 3)
    ]
    none, *some = (parts["recurrent state"] for parts in found)
    each = some[1] - some[0]
    assert some == [none + (count + 1) * each for count in (1, 2, 3)]


def test_plan_adds_up_what_the_model_takes_and_nothing_else(kinfolk, model):
    lines = [line.split("  ") for line in kinfolk("plan", model).stdout.splitlines()]
    rows = {line[0]: line[-1].strip() for line in lines}
    names = list(rows)
    assert names.index("sum") < names.index("left to others") < names.index("usable on cpu")
    report = json.loads(kinfolk("plan", model, "--json").stdout)
    assert "left to others" not in report["parts"]


def test_plan_shows_the_disk_and_refuses_one_without_host_memory(kinfolk, model):
    assert "on the disk" not in kinfolk("plan", model, "--device", "cpu").stdout
    done = kinfolk("plan", model, "--device", "cpu", "--cache-disk", 0.5)
    assert "prefixes on the disk        512.0 MiB" in done.stdout
    report = json.loads(kinfolk("plan", model, "--cache-disk", 0.5, "--json").stdout)
    assert report["disk"] == 2**29
    refused = kinfolk("plan", model, "--cache-disk", 1, "--cache-memory", 0)
    assert refused.exit_code != 0
    assert "--cache-disk needs host memory" in refused.stderr


def test_plan_shows_host_memory_for_checkpoints_and_takes_what_was_asked_for(kinfolk, model):
    done = kinfolk("plan", model, "--device", "cpu", "--cache-memory", 0.5)
    assert "checkpoints in host memory  512.0 MiB" in done.stdout
    report = json.loads(kinfolk("plan", model, "--cache-memory", 0, "--json").stdout)
    assert report["demoted_checkpoints"] == report["limits"]["host_bytes"] == 0
    refused = kinfolk("plan", model, "--cache-memory", 10**6)
    assert refused.exit_code != 0
    assert "--cache-memory asks for 1000000.00 GiB" in refused.stderr


def test_plan_says_how_keys_and_values_are_stored(kinfolk, model):
    def stored(*options):
        lines = kinfolk("plan", model, *options).stdout.splitlines()
        (found,) = (line for line in lines if line.startswith("keys and values as"))
        return found.removeprefix("keys and values as").strip()

    assert stored("--kv-codec", "f16") == "f16"
    assert stored("--kv-codec", "f16", "--v-codec", "bf16") == "k f16, v bf16"


def test_plan_refuses_what_does_not_fit_with_the_arithmetic(kinfolk, model):
    done = kinfolk("plan", model, "--memory", 0.01)
    assert done.exit_code == 2
    assert "does not fit: weights" in done.stderr
