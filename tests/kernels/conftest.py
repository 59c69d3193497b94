"""Triton exists for Linux only; elsewhere its tests are not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["test_interpreter_tier.py"]
