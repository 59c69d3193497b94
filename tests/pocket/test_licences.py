"""The gate admits what the metadata calls permissive, and nothing else."""

from __future__ import annotations

import pytest
from pocket.licences import foreign, judge, permissive_expression


@pytest.mark.parametrize(
    "expression",
    [
        "MIT",
        "Apache-2.0 AND MIT",
        "MIT OR GPL-3.0-only",
        "Apache-2.0 WITH LLVM-exception",
        "(GPL-2.0-only OR BSD-3-Clause) AND (ISC)",
    ],
)
def test_permissive_expressions(expression: str) -> None:
    assert permissive_expression(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "MPL-2.0 AND MIT",
        "GPL-3.0-or-later WITH GCC-exception-3.1",
        "MIT AND (GPL-2.0-only OR LGPL-2.1-only)",
        "LicenseRef-Proprietary",
        "MIT AND",
        "(MIT",
        "MIT MIT",
        "",
        "WITH",
    ],
)
def test_other_and_malformed_expressions(expression: str) -> None:
    assert not permissive_expression(expression)


def test_the_expression_decides_before_classifiers_and_free_text() -> None:
    mit = ["License :: OSI Approved :: MIT License"]
    assert judge("GPL-3.0-only", mit, "MIT") == (False, "GPL-3.0-only")
    assert judge("", mit, "GPL")[0]


def test_every_classifier_must_be_permissive() -> None:
    both = [
        "License :: OSI Approved :: MIT License",
        "License :: OSI Approved :: GNU General Public License v3 (GPLv3)",
        "Programming Language :: Python",
    ]
    assert not judge("", both, "")[0]
    assert not judge("", ["License :: Other/Proprietary License"], "MIT")[0]


@pytest.mark.parametrize(
    "free", ["MIT", "BSD 3-Clause License\n\nCopyright", "Apache License, Version 2.0", "MIT OR X"]
)
def test_usual_free_texts(free: str) -> None:
    assert judge("", [], free)[0]


@pytest.mark.parametrize("free", ["", "Copyright (c) 2001", "LGPL", "see LICENSE", "not MIT"])
def test_no_clear_statement_means_no_admission(free: str) -> None:
    assert not judge("", [], free)[0]


def test_vendored_folders_are_other_peoples_code() -> None:
    assert foreign("pip/_vendor/rich/text.py")
    assert not foreign("vendors/text.py")
