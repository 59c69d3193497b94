"""Checks the addresses of a kernel's copies to shared memory."""

from __future__ import annotations

import re

from kinfolk_kernels.aot import instructions_of


def assert_addresses_of_one_register(code: bytes) -> None:
    """A device refuses a copy with a cache policy whose address is the sum of two registers, see
    ``own_address`` in ``gemm_parts.cu``."""
    copies = [line for line in instructions_of(code) if "LDGSTS" in line]
    assert len(copies) > 20
    assert not [line for line in copies if re.search(r"\[R\d+\+UR\d+", line)]
