"""The server answers the README's request as the README shows."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from urllib.parse import urlsplit

import httpx
import pytest

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.server.options import ServerOptions
from kinfolk.server.service import Service
from kinfolk.settings import load_settings


@pytest.fixture
def runtime():
    settings = load_settings(device="cpu", slots=1)
    registry = Registry.discover(settings, reserved_commands=BUILT_IN.keys())
    with Runtime.open(bundled_model(registry), settings, registry) as runtime:
        yield runtime


def example(page: str) -> tuple[str, str, object]:
    """Path and body of the request of the page, and the answer that it shows."""
    blocks = re.findall(r"^```sh\n(curl [^`]*)^```\n[^`]*^```json\n(.*?)^```", page, re.M | re.S)
    ((command, answer),) = blocks
    words = shlex.split(command)
    (url,) = (word for word in words if word.startswith("http://"))
    return urlsplit(url).path, words[words.index("-d") + 1], json.loads(answer)


def differences(shown, found, where="answer"):
    """Differences between an answer and the shown one; "…" stands for any value, and more keys."""
    if isinstance(shown, str) and "…" in shown:
        same = fnmatch.fnmatchcase(str(found), shown.replace("…", "*"))
        return [] if same else [f"{where}: {found!r}"]
    if isinstance(shown, dict) and isinstance(found, dict):
        stated = [key for key in shown if key != "…"]
        missing = sorted(set(stated) - set(found))
        more = [] if "…" in shown else sorted(set(found) - set(stated))
        named = [f"{key}: is missing" for key in missing] + [f"{key}: is not shown" for key in more]
        both = [key for key in stated if key in found]
        return named + [line for key in both for line in differences(shown[key], found[key], key)]
    if isinstance(shown, list) and isinstance(found, list) and len(shown) == len(found):
        pairs = zip(shown, found, strict=True)
        return [line for one, two in pairs for line in differences(one, two, where)]
    return [] if shown == found else [f"{where}: {found!r}, shown {shown!r}"]


def test_the_readmes_request_is_answered_as_shown(repo, runtime, run_server):
    path, body, shown = example((repo / "README.md").read_text())
    server = run_server(Service(runtime, ServerOptions(runtime.name), 1))
    answer = httpx.post(server.url + path, content=body, timeout=60)
    assert answer.status_code == 200
    assert differences(shown, answer.json()) == []


def test_a_difference_is_seen():
    shown = {"id": "a-…", "usage": {"n": 5}, "more": ["…"], "part": {"x": 1, "…": "…"}}
    found = {"id": "a-1", "usage": {"n": 5}, "more": [{}], "part": {"x": 1, "y": 2}}
    assert differences(shown, found) == []
    assert differences(shown, found | {"id": "b-1"}) == ["id: 'b-1'"]
    assert differences(shown, found | {"usage": {"n": 6}}) == ["n: 6, shown 5"]
    assert differences(shown, found | {"usage": {}}) == ["n: is missing"]
    assert differences(shown, found | {"new": 1}) == ["new: is not shown"]
    assert differences(shown, found | {"more": []}) != []
