"""One word, one meaning: no two classes of the installed packages share a name."""

from __future__ import annotations

import ast
from collections import defaultdict

SHARED = {
    # The kernels may not import the core, and both say why a back end refuses an op.
    "Verdict": {"kinfolk.descriptors", "kinfolk_kernels.verdict"},
}


def test_no_two_classes_share_a_name(library):
    modules = defaultdict(list)
    for source in library:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(source.module)
    shared = {name: set(where) for name, where in modules.items() if len(where) > 1}
    assert shared == SHARED
