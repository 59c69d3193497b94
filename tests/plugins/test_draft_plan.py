"""Plans and specs of drafters with weights refuse what no engine can run."""

from __future__ import annotations

import pytest

from kinfolk.descriptors import DrafterSpec
from kinfolk.draft_api import DraftPlan
from kinfolk.plans import WeightPlan


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"block": 65}, r"DraftPlan\.block: 65 is not in 1\.\.64"),
        ({"block": 0}, r"DraftPlan\.block: 0 is not in 1\.\.64"),
        ({"depth": 64}, r"DraftPlan\.depth: 64 is not in 1\.\.63"),
        ({"columns": 0}, r"DraftPlan\.columns: 0 is less than 1"),
        ({"fill": -1}, r"DraftPlan\.fill: -1 is no token"),
        ({"features": (1, 3, 1)}, r"DraftPlan\.features: \(1, 3, 1\) names a layer twice"),
        ({"features": [1]}, r"DraftPlan\.features: Input should be a valid tuple"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        DraftPlan(WeightPlan(()), **fields)


def test_features_stand_side_by_side():
    assert DraftPlan(WeightPlan(()), features=(1, 5, 9)).feature_width(100) == 300
    assert DraftPlan(WeightPlan(()), features=(1,), final=True).feature_width(100) == 200
    assert DraftPlan(WeightPlan(())).feature_width(100) == 0


def test_a_spec_reads_files_by_patterns():
    spec = DrafterSpec("d", architectures=("dflash", "*-dflash-draft"), prepare="m:p", build="m:b")
    assert spec.has_weights
    found = [spec.reads(name) for name in ("dflash", "qwen35-dflash-draft", "dflash-draft", "x")]
    assert found == [True, True, False, False]
    assert not DrafterSpec("d", "m:f").reads("dflash")
