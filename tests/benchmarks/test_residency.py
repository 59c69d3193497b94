"""The simulator of experts counts what the op ``fetch`` and the engine count, trace for trace."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.plans import Placement
from kinfolk.registry import Registry
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk_kernels.fetch import op as reference
from kinfolk_kernels.fetch import torch_backend as fast

SCRIPTS = (
    *("expert_traces", "expert_residency", "traced_routes", "row_file", "played_decoding"),
    *("residency_bench", "residency"),
)


@pytest.fixture(scope="module", autouse=True)
def scripts(repo):
    """The modules by name, gone again from this process at the end."""
    before = [*sys.path]
    sys.path.insert(0, str(repo / "benchmarks"))
    yield {name: importlib.import_module(name) for name in SCRIPTS}
    sys.path[:] = before
    for name in [*SCRIPTS, "resume", "results"]:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def traces(scripts):
    return scripts["expert_traces"]


@pytest.fixture(scope="module")
def residency(scripts):
    return scripts["expert_residency"]


# -- traces ---------------------------------------------------------------------------------------


def test_a_sticky_trace_has_the_reuse_that_it_is_named_for(traces):
    """Choices vary by sqrt(p (1 - p) / n); they are not independent, so six times that."""
    for kind in ("sticky", "sticky-zipf"):
        trace = traces.draw(kind, 300, layers=6, experts=256, top_k=8, seed=1)
        for window, share in ((1, traces.LAST), (traces.WINDOW, traces.WITHIN)):
            bound = 6 * (share * (1 - share) / trace.ids.size) ** 0.5
            assert trace.reuse(window) == pytest.approx(share, abs=bound), kind


def test_the_busiest_experts_of_a_trace_are_those_of_its_kind(traces):
    def busiest(kind):
        return traces.draw(kind, 400, layers=4, experts=64, top_k=1).busiest(0.25)

    weights = np.arange(1, 65) ** -traces.ZIPF
    expected = weights[:16].sum() / weights.sum()
    assert busiest("zipf") == pytest.approx(expected, abs=0.04)
    # The largest of 64 counts of 400 / 64 lie a little above it.
    assert 0.25 < busiest("uniform") < 0.45


@pytest.mark.parametrize("kind", ["uniform", "zipf", "sticky", "sticky-zipf"])
@pytest.mark.parametrize(("experts", "top_k"), [(12, 3), (4, 4), (1, 1)])
def test_a_token_chooses_different_experts_in_every_kind(traces, kind, experts, top_k):
    trace = traces.draw(kind, 40, layers=2, experts=experts, top_k=top_k, sequences=3)
    assert trace.ids.shape == (40, 3, 2, top_k)
    assert trace.ids.max() < experts
    ordered = np.sort(trace.ids, -1)
    assert not (ordered[..., 1:] == ordered[..., :-1]).any()


def test_a_saved_trace_is_the_same_and_a_damaged_file_is_refused(traces, tmp_path):
    trace = traces.draw("sticky", 30, layers=2, experts=9, top_k=3)
    path = tmp_path / "trace.npz"
    trace.save(path)
    read = traces.load(path)
    assert (read.name, read.experts) == (trace.name, trace.experts)
    assert np.array_equal(read.ids, trace.ids)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="cannot be read"):
        traces.load(path)
    for field, ids in {
        "expert 9 of 9": np.full_like(trace.ids, 9),
        "an expert twice": np.zeros_like(trace.ids),
        "4 dimensions": trace.ids[0],
    }.items():
        replace(trace, ids=ids).save(path)
        with pytest.raises(ValueError, match=field):
            traces.load(path)
    np.savez(path, ids=trace.ids)
    with pytest.raises(ValueError, match="lacks experts, name, version"):
        traces.load(path)


def test_steps_take_the_rows_of_a_trace_in_order(traces):
    trace = traces.draw("uniform", 5, layers=2, experts=8, top_k=2, sequences=2)
    five, two, three, four = trace.steps([5, 2, 3, 2])
    assert np.array_equal(five, trace.stream[:5])
    # The step of five rows ended within the third token of the sequences.
    assert np.array_equal(two, trace.ids[3])
    assert np.array_equal(three, trace.stream[[8, 9, 0]])
    assert np.array_equal(four, trace.ids[1])
    assert np.array_equal(list(trace.steps()), trace.ids)


def test_a_recorded_trace_is_cut_into_sequences(traces):
    trace = traces.draw("uniform", 50, layers=2, experts=8, top_k=2)
    cut = trace.split(4)
    assert np.array_equal(cut.ids[:, 1], trace.ids[12:24, 0])
    with pytest.raises(ValueError, match="50 tokens of 1 sequences"):
        trace.split(6)


# -- the simulator --------------------------------------------------------------------------------


def arguments(experts, bays, pinned, decay):
    """A layer whose first experts are in its bays; their records are their numbers."""
    record = torch.arange(experts, dtype=torch.uint8)[:, None].repeat(1, 8)
    where = [expert if expert < bays else bays + expert for expert in range(experts)]
    return reference.FetchArguments(
        record[:bays].clone(),
        record,
        torch.tensor(where),
        torch.arange(bays, dtype=torch.int32),
        torch.zeros(experts),
        torch.zeros(experts, dtype=torch.int64),
        torch.zeros(3, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int32),
        pinned,
        decay,
    )


@pytest.mark.parametrize("backend", [reference, fast], ids=["ref", "torch"])
@settings(max_examples=10)
@given(
    kind=st.sampled_from(["uniform", "zipf", "sticky"]),
    share=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
    pinned=st.sampled_from([0, 0, 2]),
    sequences=st.sampled_from([1, 1, 3, 16]),
    decay=st.sampled_from([0.5, 0.95, 0.99, 1.0]),
    seed=st.integers(0, 99),
)
def test_the_simulator_counts_what_the_op_counts(
    backend, scripts, kind, share, pinned, sequences, decay, seed
):
    traces, residency = scripts["expert_traces"], scripts["expert_residency"]
    experts, bays = 24, round(24 * share)
    trace = traces.draw(
        kind, 60, layers=1, experts=experts, top_k=4, sequences=sequences, seed=seed
    )
    layer = arguments(experts, bays, min(pinned, bays), decay)
    placement = Placement((tuple(range(bays)),), (min(pinned, bays),))
    simulated = residency.Residency.of(placement, experts)
    steps = residency.walk(trace, residency.DecayedCount(decay), simulated)
    for ids, step in zip(trace.ids, steps, strict=True):
        before = layer.traffic.clone()
        layer.rows.fill_(sequences)
        backend.fetch(layer, torch.from_numpy(ids[:, 0].astype(np.int64)))
        assert (layer.traffic - before).tolist() == list(step.totals)
        assert simulated.near[0].tolist() == (layer.bay_of_expert < bays).tolist()


def test_other_policies_keep_their_promises(residency, traces):
    experts, record = 64, np.full(3, 10)
    trace = traces.draw("sticky", 150, layers=3, experts=experts, top_k=4)
    counts = trace.counts()

    def run(policy, share, counts=None):
        budget = int(share * experts * record.sum())
        placement = residency.placement_for(budget, record, experts, counts)
        return residency.simulate(trace, policy, residency.Residency.of(placement, experts))

    lru = [run(residency.LeastRecentlyUsed(), share).totals[0] for share in (0.25, 0.5, 0.75)]
    assert lru == sorted(lru), "more bays never miss more"
    static = run(residency.Static(), 0.5, counts)
    best = np.sort(counts.ravel())[::-1][:96].sum()
    assert static.totals == (best, 0, trace.ids.size - best)
    fetched = run(residency.DecayedCount(0.95), 0.5)
    swaps = [residency.HostSwaps(lag, residency.DecayedCount(0.95)) for lag in (1, 4, 999)]
    soon, late, never = (run(policy, 0.5) for policy in swaps)
    # Known one step later: the bays of fetching, but what was missed crosses the link twice.
    assert soon.totals[0] == fetched.totals[0] > late.totals[0] > never.totals[0]
    assert soon.totals[2] == fetched.totals[1]
    assert soon.swapped.sum() > 0.95 * soon.totals[2]
    assert never.totals == run(residency.Static(), 0.5).totals
    assert never.swapped.sum() == 0


# -- the engine -----------------------------------------------------------------------------------


def test_the_table_is_printed_and_written(scripts, tmp_path, capsys):
    file = tmp_path / "rows.json"
    sizes = ("--layers", "2", "--experts", "16", "--top-k", "2", "--tokens", "40", "--warm", "10")
    scripts["residency"].main(
        [
            *("--trace", "sticky", *sizes, "--share", "50", "--budget", "0.02", "--decay", ".9"),
            *("1", "--sequences", "1", "3", "--record-bytes", "1e6", "--json", str(file)),
        ]
    )
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 2 * 2 * 5
    for row in rows:
        chosen = row["hits"] + row["fetched"] + row["far"]
        assert row["missed_a_token"] == round((chosen - row["hits"]) / row["tokens"], 2)
        moved = row["fetched"] + row["far"] + row["swapped"]
        assert row["MB_a_token"] == round(moved / row["tokens"], 2)
    shown = capsys.readouterr().out
    assert "were the last token's" in shown
    assert "count 0.9" in shown
    with pytest.raises(SystemExit):
        scripts["residency"].main(["--trace", "no such file"])
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(("backend", "graphs"), [("reference", "off"), ("torch", "on")])
def test_the_engine_counts_what_the_simulator_counts(scripts, cases, traces, backend, graphs):
    """On a GPU the counters are those of the op ``fetch`` in captured steps, padded as here."""
    residency, routes = scripts["expert_residency"], scripts["traced_routes"]
    trace = traces.draw("sticky", 200, layers=5, experts=12, top_k=3)
    options = load_settings(
        device="cpu",
        dtype="f32",
        context=256,
        slots=1,
        draft="off",
        graphs=graphs,
        expert_budget="30%",
        op=f"route=played,fetch={backend}",
    )
    registry = routes.with_traced_routes(Registry.discover(load_settings()))
    limits = SchedulerLimits(slots=1, context=256, step_tokens=64, slice=32)
    with routes.playing(trace) as player:
        loaded = load_model(cases / "laguna.gguf", options, registry)
        player.real_rows = loaded.real_rows
        with Engine(loaded, limits) as engine:
            *_, end = engine.submit(Request("r", tuple(range(5, 45)), 50))
            assert end.error is None
            use, stats, rows = engine.expert_use(), engine.stats(), player.rows()
    assert rows == [32, 8, *[1] * 49]
    placement = loaded.source.ready.experts.placement
    simulated = residency.simulate(
        trace,
        residency.DecayedCount(residency.DECAY),
        residency.Residency.of(Placement(placement.bays[1:]), 12),
        rows,
    )
    counted = [stats[f"expert_{kind}"] for kind in ("hits", "fetched", "far")]
    assert tuple(counted) == simulated.totals
    assert min(counted) > 0
    first = traces.Trace("run", 12, trace.ids[: sum(rows)])
    assert [list(use[layer + 1]) for layer in range(5)] == first.counts().tolist()


def test_what_a_model_chose_is_what_its_counters_say(scripts, cases, traces, tmp_path):
    """Recorded, then played to the same model: the same counts, with a bay for few."""
    out, text = tmp_path / "trace.npz", tmp_path / "text.txt"
    text.write_text("to be " * 20)
    model = str(cases / "qwen35moe.gguf")
    scripts["residency"].main(
        [
            *("record", "-m", model, "--out", str(out), "--texts", str(text), "--device", "cpu"),
            *("--dtype", "f32", "--prompt", "12", "--tokens", "6"),
        ]
    )
    trace = traces.load(out)
    assert trace.ids.shape == (12 + 6 - 1, 1, 5, 3)
    options = load_settings(
        device="cpu", dtype="f32", context=64, slots=1, draft="off", expert_budget="30%"
    )
    registry = Registry.discover(load_settings())
    loaded = load_model(cases / "qwen35moe.gguf", options, registry)
    from kinfolk.engine.text import open_text

    tokenizer, _, _ = open_text(cases / "qwen35moe.gguf", options, registry)
    tokens = tokenizer.encode(text.read_text(), parse_special=False)[:12]
    with Engine(loaded, SchedulerLimits(slots=1, context=64, step_tokens=64, slice=32)) as engine:
        *_, end = engine.submit(Request("r", tuple(tokens), 6))
        assert end.error is None
        use = engine.expert_use()
    assert [list(use[layer]) for layer in range(5)] == trace.counts().tolist()


def test_bench_has_a_row_for_all_that_was_asked(scripts, cases, tmp_path, capsys):
    file = tmp_path / "rows.json"
    common = ("--device", "cpu", "--dtype", "f32", "--repeats", "1", "--json", str(file))
    scripts["residency"].main(
        [
            *("bench", "-m", str(cases / "qwen35moe.gguf"), *common, "--graphs", "on"),
            *("--expert-budget", "50%", "--sequences", "1", "3", "--prompt", "9"),
            *("--generate", "5", "--link", "10"),
        ]
    )
    rows = json.loads(file.read_text())["rows"]
    full, near, stay = (
        [row for row in rows if row["opening"] == opening]
        for opening in ("all, swap on", "50%, swap on", "50%, swap off")
    )
    assert [len(part) for part in (full, near, stay)] == [2, 2, 2]
    for row, base in zip([*near, *stay], [*full, *full], strict=True):
        assert row["added_ms"] == round(row["ms"] - base["ms"], 3)
        assert row["percent"] == 50
    # The bars of one sequence that swaps are those of three large models.
    assert [row["bar_ms"] is None for row in near] == [True, False]
    for row in [near[1], *stay]:
        assert row["held"] == (row["added_ms"] <= row["bar_ms"])
    for row in near:
        assert row["device"] == row["simulated"]
    for row in stay:
        assert row["device"] is None
        assert row["copied_MB"] == 0 < row["far_MB"]
        assert row["bar_ms"] == round(row["far_MB"] / 8 + 0.3, 3)
    assert "as simulated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("architecture", "experts", "bars"),
    [("qwen35moe", 10240, (1.56, 3.2)), ("qwen35moe", 9216, (None, None)),
     ("laguna", 9984, (1.9, None)), ("gemma4", 3840, (2.2, None))],
)  # fmt: skip
def test_bars_are_of_models_not_of_architectures(scripts, architecture, experts, bars):
    row = {
        "architecture": architecture, "experts": experts, "trace": "sticky", "percent": 50.0,
        "link_GB_s": 55.0, "copied_MB": 70.0, "far_MB": 0.0, "prompts": False, "swap": "on",
        "sequences": 1, "rows": 1,
    }  # fmt: skip
    bar_of = scripts["played_decoding"].bar_of
    assert tuple(bar_of({**row, "memory": memory}) for memory in (None, 8.0)) == bars


def test_bench_leaves_out_what_begins_too_late_and_says_so(scripts, cases, capsys):
    model = str(cases / "qwen35moe.gguf")
    scripts["residency"].main(["bench", "-m", model, "--device", "cpu", "--seconds", "0"])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3
    assert all(line.endswith("--seconds 0 are over") for line in shown)


def test_bench_goes_on_from_the_rows_of_a_file_and_says_what_cannot_be_opened(
    scripts, cases, traces, tmp_path, capsys
):
    """What was measured stays as it was; a row that failed is tried again."""
    file, other = tmp_path / "rows.json", tmp_path / "other.npz"
    traces.draw("uniform", 40, layers=5, experts=13, top_k=3).save(other)
    fixed = ("--device", "cpu", "--dtype", "f32", "--repeats", "1", "--prompt", "6", "--swap", "on")
    model = ("-m", str(cases / "qwen35moe.gguf"), *fixed, "--generate", "3", "--link", "10")
    run, budget = scripts["residency"].main, ("--expert-budget", "30%")
    run(["bench", *model, *budget, "--trace", str(other), "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 2
    assert all("trace uniform chooses 3 of 13 experts" in row["failed"] for row in rows)
    kept = {"opening": "all, swap on", "case": "sticky, one sequence", "ms": 1000.0}
    file.write_text(json.dumps({"rows": [*rows, kept]}))
    run(["bench", *model, *budget, "--json", str(file), "--resume"])
    first, second = json.loads(file.read_text())["rows"]
    assert first == kept
    assert second["opening"] == "30%, swap on"
    assert second["added_ms"] == round(second["ms"] - 1000.0, 3)
    file.write_text("{")
    with pytest.raises(SystemExit):
        run(["bench", *model, "--json", str(file), "--resume"])
    assert "has no rows to go on from" in capsys.readouterr().err
    assert file.read_text() == "{"


def test_a_trace_of_another_model_is_refused_with_the_sizes(scripts, cases, traces, tmp_path):
    routes = scripts["traced_routes"]
    registry = routes.with_traced_routes(Registry.discover(load_settings()))
    options = load_settings(device="cpu", dtype="f32", context=64, op="route=played")
    trace = traces.draw("uniform", 10, layers=5, experts=13, top_k=3)
    with routes.playing(trace), pytest.raises(Exception, match="3 of 13 experts, the layer 3 of"):
        load_model(cases / "qwen35moe.gguf", options, registry)
    with pytest.raises(Exception, match=r"no block 'with playing\(...\)' is open"):
        load_model(cases / "qwen35moe.gguf", options, registry)
