"""The file of an expert profile: what is read, what is refused, and what a crash leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinfolk.errors import OutputError, SettingsError
from kinfolk.experts.profile import MOST_USES, ExpertProfile
from kinfolk.gguf.output import claim

LAYERS = (3, 0, 2)
COUNTS = ((5, 0, 7), (), (1, 11))


@pytest.fixture
def saved(tmp_path):
    profile = ExpertProfile.load(tmp_path / "profile.json", "model-a", LAYERS)
    profile.add(COUNTS, 12)
    profile.save()
    return profile.path


def test_a_new_profile_has_no_counts(tmp_path):
    profile = ExpertProfile.load(tmp_path / "none.json", "model-a", LAYERS)
    assert profile.counts is None
    profile.save()
    assert not profile.path.exists()


def test_counts_of_the_file_and_of_this_run_are_added(saved):
    profile = ExpertProfile.load(saved, "model-a", LAYERS)
    profile.add(COUNTS, 3)
    profile.save()
    again = ExpertProfile.load(saved, "model-a", LAYERS)
    assert (again.counts, again.tokens) == (((10, 0, 14), (), (2, 22)), 15)
    assert saved.stat().st_mode & 0o777 == 0o600
    assert list(saved.parent.iterdir()) == [saved]


def test_a_folder_that_does_not_exist_is_refused_before_anything_is_counted(tmp_path):
    with pytest.raises(SettingsError, match=r"there is no folder .*missing"):
        ExpertProfile.load(tmp_path / "missing" / "p.json", "model-a", LAYERS)


@pytest.mark.parametrize(
    "counts", [((1, 1, 1), ()), ((1, 1), (), (1, 1)), ((1, 1, 1), (), (1, -1))]
)
def test_wrong_counts_add_nothing(saved, counts):
    profile = ExpertProfile.load(saved, "model-a", LAYERS)
    with pytest.raises(ValueError, match="counts of experts"):
        profile.add(counts, 1)
    assert (profile.counts, profile.tokens) == (COUNTS, 12)


def test_a_call_that_saves_has_the_counts_of_when_it_was_made(tmp_path):
    profile = ExpertProfile(tmp_path / "p.json", "model-a", LAYERS)
    profile.add(COUNTS, 1)
    save = profile.saving()
    profile.add(COUNTS, 2)
    save()
    assert ExpertProfile.load(profile.path, "model-a", LAYERS).counts == COUNTS
    profile.save()
    assert ExpertProfile.load(profile.path, "model-a", LAYERS).tokens == 3
    assert profile.saving() is None


def test_a_profile_that_cannot_be_written_keeps_its_counts(tmp_path):
    profile = ExpertProfile(tmp_path / "missing" / "p.json", "model-a", LAYERS)
    profile.add(COUNTS, 1)
    with pytest.raises(OutputError, match=r"p\.json"):
        profile.save()
    profile.path.parent.mkdir()
    profile.save()
    assert ExpertProfile.load(profile.path, "model-a", LAYERS).counts == COUNTS


def test_two_runs_that_save_one_file_lose_no_counts(tmp_path):
    path, rounds = tmp_path / "p.json", 20
    profiles = [ExpertProfile.load(path, "model-a", LAYERS) for _ in range(3)]

    def run(profile):
        for _ in range(rounds):
            profile.add(((1, 0, 0), (), (0, 1)), 1)
            profile.save()

    with ThreadPoolExecutor(len(profiles)) as pool:
        list(pool.map(run, profiles))
    found = ExpertProfile.load(path, "model-a", LAYERS)
    runs = len(profiles) * rounds
    assert (found.counts, found.tokens) == (((runs, 0, 0), (), (0, runs)), runs)
    assert list(tmp_path.iterdir()) == [path]


def test_who_holds_the_file_for_long_delays_a_save_and_costs_no_counts(saved, monkeypatch):
    monkeypatch.setattr("kinfolk.experts.profile.LOCK_SECONDS", 0.05)
    profile = ExpertProfile.load(saved, "model-a", LAYERS)
    profile.add(COUNTS, 3)
    with open(claim(saved), "wb"):
        with pytest.raises(OutputError, match="another process is writing it"):
            profile.save()
        assert ExpertProfile.load(saved, "model-a", LAYERS).tokens == 12
    profile.save()
    assert ExpertProfile.load(saved, "model-a", LAYERS).tokens == 15


@pytest.mark.parametrize("text", ["{", '{"version": 2}', "\udcff"])
def test_a_file_that_was_spoilt_meanwhile_stays_and_costs_no_counts(saved, text):
    whole = saved.read_bytes()
    profile = ExpertProfile.load(saved, "model-a", LAYERS)
    profile.add(COUNTS, 3)
    spoilt = text.encode(errors="surrogateescape")
    saved.write_bytes(spoilt)
    with pytest.raises(OutputError, match=r"profile\.json"):
        profile.save()
    assert saved.read_bytes() == spoilt
    saved.write_bytes(whole)
    profile.save()
    assert ExpertProfile.load(saved, "model-a", LAYERS).tokens == 15
    assert list(saved.parent.iterdir()) == [saved]


def test_the_file_of_another_model_that_came_meanwhile_is_not_replaced(saved):
    profile = ExpertProfile.load(saved, "model-a", LAYERS)
    profile.add(COUNTS, 3)
    saved.unlink()
    other = ExpertProfile.load(saved, "model-b", LAYERS)
    other.add(COUNTS, 7)
    other.save()
    with pytest.raises(OutputError, match="the profile is of another model"):
        profile.save()
    assert ExpertProfile.load(saved, "model-b", LAYERS).tokens == 7


def test_a_link_to_a_profile_stays_a_link(saved, tmp_path):
    folder = tmp_path / "links"
    folder.mkdir()
    link = folder / "link.json"
    link.symlink_to(saved)
    profile = ExpertProfile.load(link, "model-a", LAYERS)
    profile.add(COUNTS, 3)
    profile.save()
    assert link.is_symlink()
    assert ExpertProfile.load(saved, "model-a", LAYERS).tokens == 15
    assert list(folder.iterdir()) == [link]


def test_a_profile_that_is_not_kept_is_never_written(saved):
    before = saved.read_bytes()
    profile = ExpertProfile.load(saved, "model-a", LAYERS)
    profile.kept = False
    profile.add(COUNTS, 3)
    profile.save()
    assert profile.saving() is None
    assert saved.read_bytes() == before


def test_a_folder_that_takes_no_files_is_named(saved):
    profile = ExpertProfile.load(saved, "model-a", LAYERS)
    profile.require_writable()
    assert list(saved.parent.iterdir()) == [saved]
    profile.path = Path("/proc/p.json")
    with pytest.raises(SettingsError, match=r"--expert-profile /proc/p\.json: no file can be"):
        profile.require_writable()


def test_what_only_a_save_would_find_is_found_at_the_start(saved, monkeypatch):
    profile = ExpertProfile.load(saved, "model-a", LAYERS)
    profile.path = saved.with_name("n" * 245)
    with pytest.raises(SettingsError, match="File name too long"):
        profile.require_writable()
    profile.path = saved
    partial = saved.with_name(saved.name + ".partial")
    partial.mkdir()
    with pytest.raises(SettingsError, match=r"\.partial is a directory"):
        profile.require_writable()
    partial.rmdir()
    partial.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != partial)
    with pytest.raises(SettingsError, match=r"\.partial is another user's"):
        profile.require_writable()
    partial.unlink()
    saved.parent.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SettingsError, match="is another user's, in a sticky folder"):
        profile.require_writable()


def test_a_file_that_is_mounted_alone_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "my profile\u00a0.json"
    profile = ExpertProfile.load(path, "model-a", LAYERS)
    profile.require_writable()
    mounts = b"36 35 98:0 /mnt1 /mnt2 rw - ext3 /dev/root rw\n37 35 98:0 / %s rw - e /d rw\n"
    monkeypatch.setattr(Path, "read_bytes", lambda self: mounts % name)
    name = str(path).replace(" ", r"\040").encode()
    with pytest.raises(SettingsError, match="is mounted as a single file"):
        profile.require_writable()


def test_the_profile_of_another_model_is_refused(saved):
    with pytest.raises(SettingsError, match="'fingerprint' is 'model-a', but the model's is 'b'"):
        ExpertProfile.load(saved, "b", LAYERS)
    with pytest.raises(SettingsError, match="'counts': layer 0 has 3 experts, the model's has 4"):
        ExpertProfile.load(saved, "model-a", (4, 0, 2))


@pytest.mark.parametrize(
    ("name", "value"),
    [("version", 1), ("version", True), ("tokens", -1), ("counts", [[1], 2]), ("checksum", "0")],
)
def test_a_damaged_field_is_named(saved, name, value):
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {name: value}))
    with pytest.raises(SettingsError, match=re.escape(f"'{name}'")):
        ExpertProfile.load(saved, "model-a", LAYERS)


def test_a_count_that_no_counter_can_reach_is_refused(tmp_path):
    (tmp_path / "counts.csv").write_text(f"{2**63},0,0\n0,0\n")
    with pytest.raises(SettingsError, match="'counts': layer 0 has 9223372036854775808 where"):
        ExpertProfile.load(tmp_path / "counts.csv", "model-a", LAYERS)


def test_sums_stay_counts_that_are_read_again(tmp_path):
    (tmp_path / "counts.csv").write_text(f"{MOST_USES - 3},0,0\n0,0\n")
    profile = ExpertProfile.load(tmp_path / "counts.csv", "model-a", LAYERS)
    other = ExpertProfile.load(profile.path, "model-a", LAYERS)
    for each in (profile, other):
        each.add(((2, 1, 0), (), (0, 0)), 1)
        each.save()
    assert ExpertProfile.load(profile.path, "model-a", LAYERS).counts[0] == (MOST_USES, 2, 0)
    profile.add(((MOST_USES, 0, 0), (), (0, 0)), 1)
    assert profile.counts[0] == (MOST_USES, 1, 0)


def test_a_table_of_a_spreadsheet_may_begin_with_a_mark(tmp_path):
    (tmp_path / "counts.csv").write_text("1,2,3\n4,5\n", encoding="utf-8-sig")
    profile = ExpertProfile.load(tmp_path / "counts.csv", "model-a", LAYERS)
    assert profile.counts == ((1, 2, 3), (), (4, 5))


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(SettingsError, match="is no regular file"):
            ExpertProfile.load(path, "model-a", LAYERS)


def test_a_save_keeps_who_may_read_the_file(saved):
    saved.chmod(0o644)
    profile = ExpertProfile.load(saved, "model-a", LAYERS)
    profile.add(COUNTS, 3)
    profile.save()
    assert saved.stat().st_mode & 0o777 == 0o644


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_refused_or_says_the_same(saved, data):
    """Cut off, bytes changed, bytes put in. Spaces may differ without harm."""
    whole = saved.read_bytes()
    numbers = [place for place, byte in enumerate(whole) if chr(byte).isdigit()]
    place = data.draw(st.sampled_from(numbers) | st.integers(0, len(whole) - 1))
    end = data.draw(st.sampled_from([place, place + 1, len(whole)]))
    path = saved.with_name("damaged.json")
    # Digits leave the file valid JSON of the right shape, with other counts.
    digits = st.text("0123456789", min_size=1, max_size=2).map(str.encode)
    put_in = data.draw(digits | st.binary(max_size=3))
    path.write_bytes(whole[:place] + put_in + whole[end:])
    before = path.read_bytes()
    try:
        profile = ExpertProfile.load(path, "model-a", LAYERS)
    except SettingsError:
        profile = None
    assert profile is None or (profile.counts, profile.tokens) == (COUNTS, 12)
    assert path.read_bytes() == before


TABLE = "# hotness table: n_layer=2 n_expert=3 n_expert_used=1\n# layers\n\n1,2,3\n4, 5,6\n"


def test_a_table_of_counts_is_read(tmp_path):
    path = tmp_path / "hot.csv"
    path.write_text(TABLE)
    profile = ExpertProfile.load(path, "model-a", (0, 3, 3))
    assert profile.counts == ((), (1, 2, 3), (4, 5, 6))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1,2,x\n1,2,3\n", "line 1 has 'x'"),
        ("1,2,3\n1,-2,3\n", "line 2 has '-2'"),
        ("1,2,3\n1,2\n", "layer 2 has 2 experts"),
        ("1,2,3\n", "has 1 lines of counts, the model 2"),
        ("# nothing\n", "has 0 lines of counts"),
        ("", "has 0 lines of counts"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, text, problem):
    path = tmp_path / "hot.csv"
    path.write_text(text)
    with pytest.raises(SettingsError, match=problem):
        ExpertProfile.load(path, "model-a", (0, 3, 3))


WRITER = """
import sys
from pathlib import Path
from kinfolk.experts.profile import ExpertProfile
profile = ExpertProfile.load(Path(sys.argv[1]), "model-a", (256,) * 8)
print("ready", flush=True)
while True:
    profile.add(((1,) * 256,) * 8, 1)
    profile.save()
"""


def test_a_writer_that_is_killed_leaves_a_whole_profile(tmp_path):
    path, tokens = tmp_path / "p.json", 0
    for delay in (0.01, 0.02, 0.03, 0.05, 0.08):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        profile = ExpertProfile.load(path, "model-a", (256,) * 8)
        assert profile.tokens >= tokens
        assert profile.counts in (((profile.tokens,) * 256,) * 8, None)
        tokens = profile.tokens
    assert tokens > 0
