"""What the disk gets from pinned memory and puts into it is right, beside copies under way."""

from __future__ import annotations

import host_scenes
import numpy as np
import prefix_scenes
import pytest

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.disk_tier import salt_record
from kinfolk.engine.loading import load_model
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.state.disk import DiskCache

pytestmark = pytest.mark.gpu

CHATS, MESSAGE, ANSWER = 6, 90, 4


@pytest.mark.parametrize("family", ["qwen35", "gemma4"])
def test_chats_go_on_after_a_restart_as_if_there_had_been_none(cases, tmp_path, family):
    """Two places on the device: most chats leave it while others run, and all end on the disk."""
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    settings = load_settings(
        device="cuda", context=512, slots=1, checkpoints=2, cache_memory=0.25, draft="off"
    )
    loaded = load_model(cases / f"{family}.gguf", settings, registry)
    text = np.load(cases / "qwen35.npz")["tokens"].tolist()

    def talk(chats, turns, disk):
        record, cache = salt_record(loaded, prefix_scenes.SLICE), None
        if disk:
            cache = DiskCache.open(tmp_path / "prefix", record, 1 << 30)
        with host_scenes.opened(loaded, cache) as engine:
            return host_scenes.talk(engine, chats, turns, MESSAGE, ANSWER)

    def chats():
        return [host_scenes.Chat(n, text, loaded.info.vocabulary) for n in range(CHATS)]

    expected = talk(chats(), 2, disk=False)
    restarted = chats()
    found = talk(restarted, 1, disk=True) + talk(restarted, 1, disk=True)
    for (said, usage), (other, _) in zip(found[CHATS:], expected[CHATS:], strict=True):
        assert said == other
        assert usage.reused_from == "disk"
