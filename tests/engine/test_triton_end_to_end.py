"""Every op that has a back end in Triton, together in one model and in the interpreter, against the
logits that transformers computed."""

from __future__ import annotations

from dataclasses import replace

import attending_drafter
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.engine.buckets import Bucket, Buckets
from kinfolk.engine.cuda_graph import EagerCapture
from kinfolk.engine.engine import Engine
from kinfolk.engine.executor import EagerExecutor, GraphExecutor, StepKind
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.engine.loading import load_model
from kinfolk.sched.events import Finished
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.spec.sampling import SamplingKind
from kinfolk.testing.driver import Driver

pytestmark = [pytest.mark.interpreter, pytest.mark.timeout(900)]

OPS = (
    *("linear", "act_and_mul", "rms_norm", "add_rms_norm"),
    *("delta_inputs", "causal_conv_commit", "gated_delta", "gated_delta_commit"),
    *("qk_rope_write", "gated_attention"),
)
# Sums of float32 in another order.
BOUND = 2e-4


@pytest.fixture(scope="module")
def model(registry, cases):
    settings = load_settings(
        device="cpu",
        dtype="f32",
        context=128,
        slots=3,
        graphs="on",
        op=",".join(f"{op}=triton" for op in OPS),
    )
    return load_model(cases / "qwen35.gguf", settings, registry)


@pytest.fixture(scope="module")
def reference(cases):
    stored = np.load(cases / "qwen35.npz")
    return stored["tokens"].tolist(), torch.from_numpy(stored["logits"])


def assert_near(found, expected):
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(error.max()) <= BOUND


def test_slices_single_rows_and_drafts_of_one_sequence(model, reference):
    tokens, expected = reference
    drive = Driver(model)
    lease = drive.open(100)
    assert_near(drive.feed({lease: tokens[:5]})[lease], expected[:5])
    assert_near(drive.feed({lease: tokens[5:6]})[lease], expected[5:6])
    draft = {lease: (tokens[6:9], None)}
    assert_near(drive.draft(draft)[lease], expected[6:9])
    drive.keep({lease: [0, 1]})
    tree = {lease: ((tokens[8], 1, tokens[9]), (-1, 0, 0))}
    assert_near(drive.draft(tree)[lease][[0, 2]], expected[[8, 9]])
    drive.keep({lease: [0, 2]})
    assert_near(drive.feed({lease: tokens[10:11]})[lease], expected[10:11])
    ran = {(d.op, d.backend) for d in model.ops.decisions.values()}
    assert {(op, "triton") for op in OPS} - ran == set()


def test_tokens_of_padded_steps_are_those_of_the_cpu(model, load, reference):
    """Three sequences in buckets of four rows; the other rows change no token."""
    tokens, _ = reference

    def answers(loaded):
        limits = SchedulerLimits(slots=3, context=64, step_tokens=32, slice=16, quantum=4)
        with Engine(loaded, limits) as engine:
            tickets = [engine.submit(Request(str(i), tuple(tokens[: 2 + i]), 3)) for i in range(3)]
            found = []
            for ticket in tickets:
                *events, end = list(ticket)
                assert isinstance(end, Finished)
                assert end.error is None
                found.append([token for event in events for token in event.tokens])
            return found, engine.stats()

    found, counters = answers(model)
    assert counters["replays"] > 0
    plain, _ = answers(replace(load(context=128, slots=3), graphs=False))
    assert found == plain


class NothingFromTheHost(TorchDispatchMode):
    """Fails on ops that no graph can hold: numbers read or made on the host, and shapes that
    depend on numbers."""

    READERS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "numpy")
    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "equal", "unique")

    def __enter__(self):
        # On the CPU these do not ask the dispatcher.
        self.patch = pytest.MonkeyPatch()
        for name in self.READERS:
            self.patch.setattr(torch.Tensor, name, self.reads)
        return super().__enter__()

    def __exit__(self, *error):
        self.patch.undo()
        return super().__exit__(*error)

    @staticmethod
    def reads(tensor):
        raise AssertionError("a number is read in a step that is to be recorded")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.FORBIDDEN, f"{func} in a step that is to be recorded"
        if name in ("index", "index_put", "index_put_"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "an index of booleans"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "act",
    [
        lambda x: int(x[0]),
        lambda x: bool((x > 0).any()),
        lambda x: x[x > 0],
        lambda x: x.tolist(),
        lambda x: torch.tensor([1, 2]) + 1,
    ],
    ids=["item", "bool", "mask", "list", "tensor"],
)
def test_what_needs_the_host_is_seen(act):
    with (
        torch.inference_mode(),
        pytest.raises(AssertionError, match=r"recorded|booleans"),
        NothingFromTheHost(),
    ):
        act(torch.arange(3))


class Watching(EagerCapture):
    """A capture that runs the body once, where it may need nothing of the host."""

    def __init__(self):
        self.captured = []

    def capture(self, body):
        with NothingFromTheHost():
            self.captured.append(body())
        return body


BUCKETS = {
    "decode": Bucket("decode", 4, 4),
    "chains": Bucket("verify", 4, 4, 4, drafted=4),
    "trees": Bucket("verify", 4, 4, 4, trees=True, drafted=4),
    "short slices": Bucket("mixed", 8, 2),
    "slices and trees": Bucket("mixed", 96, 2, 4, trees=True, drafted=4, long=1),
}
SAMPLINGS = {
    "greedy": SamplingKind(True, 0),
    "all": SamplingKind(False, 0),
    "top": SamplingKind(False, 64, True),
    "logits": None,
}
# Each bucket, and each sampling, with the cheapest of the others: a bucket of slices takes minutes.
PAIRS = [(bucket, "greedy") for bucket in BUCKETS if bucket != "slices and trees"]
PAIRS += [("slices and trees", "top"), ("decode", "all"), ("decode", "top"), ("chains", "all")]
PAIRS += [("decode", "logits"), ("trees", "logits"), ("short slices", "logits")]


@pytest.mark.parametrize(
    ("bucket", "sampling"),
    [pytest.param(BUCKETS[one], SAMPLINGS[other], id=f"{other}-{one}") for one, other in PAIRS],
)
def test_the_body_of_a_recording_needs_nothing_of_the_host(model, bucket, sampling):
    if sampling is not None and bucket.drafted:
        sampling = replace(sampling, edited=False)
    _, state = model.new_state()
    watching = Watching()
    eager = EagerExecutor(model, state, KernelWarmup(model.ops, model.device))
    executor = GraphExecutor(eager, watching, Buckets())
    with torch.inference_mode():
        if sampling is None:
            executor.capture_to_logits(bucket)
        else:
            executor.capture_whole(StepKind(bucket, sampling))
    (outputs,) = watching.captured
    if sampling is None:
        assert len(outputs.logits) == bucket.shape.logits
    else:
        assert outputs.sequences == bucket.shape.sequences
        assert outputs.sampled == bucket.shape.sampled


# -- drafters with weights ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drafted(model, registry, cases, tmp_path_factory):
    """``drafted(tree, **settings)``: the model with a drafter that has a layer of attention."""
    drafters = {**registry.drafters, "attending": attending_drafter.spec()}
    path = tmp_path_factory.mktemp("drafter") / "draft.gguf"
    attending_drafter.write(path, model.config.width, window=40)

    def open_model(tree, **settings):
        mode = {"draft_budget": 5} if tree else {"draft_tokens": 3}
        mode["draft_mode"] = "tree" if tree else "chain"
        options = {"device": "cpu", "dtype": "f32", "context": 128, "slots": 3, "graphs": "on"}
        options |= {"draft_model": path, **mode, **settings}
        return load_model(
            cases / "qwen35.gguf", load_settings(**options), replace(registry, drafters=drafters)
        )

    return open_model


TRITON = {"op": ",".join(f"{op}=triton" for op in (*OPS, "draft_trees", "place_drafts"))}


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_the_bodies_of_steps_and_drafts_need_nothing_of_the_host(drafted, tree):
    model = drafted(tree, **TRITON)
    _, state = model.new_state()
    watching = Watching()
    eager = EagerExecutor(model, state, KernelWarmup(model.ops, model.device))
    executor = GraphExecutor(eager, watching, Buckets(drafted=model.usual_draft))
    kinds = [
        Bucket("decode", 2, 2),
        Bucket("verify", 8, 2, 16, tree, 8),
        Bucket("mixed", 16, 2, 16, tree, 16),
    ]
    with torch.inference_mode():
        for bucket in kinds:
            executor.capture_whole(StepKind(bucket, SamplingKind(False, 0)))
        executor.capture_draft(eager.drafting, 2)
    assert len(watching.captured) == len(kinds) + 1


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_drafts_by_kernels_are_those_of_the_cpu(drafted, reference, tree):
    """What is proposed, and what is emitted, beside a longer neighbour beyond the window."""
    tokens, _ = reference

    def answers(loaded):
        limits = SchedulerLimits(slots=3, context=100, step_tokens=96, slice=64, quantum=4)
        with Engine(loaded, limits) as engine:
            requests = [Request("a", tuple(tokens[:50]), 4), Request("b", tuple(tokens[:9]), 4)]
            tickets = [engine.submit(request) for request in requests]
            found = []
            for ticket in tickets:
                *events, end = list(ticket)
                assert end.error is None
                found.append([token for event in events for token in event.tokens])
            stats, store = engine.stats(), engine._runner.executor.drafting.store
            assert stats["draft_failures"] == 0
            assert stats["drafts"] > 1
            return found, store.drafts.tokens[1:].tolist(), store.drafts.parents[1:].tolist()

    assert answers(drafted(tree, **TRITON)) == answers(drafted(tree))
