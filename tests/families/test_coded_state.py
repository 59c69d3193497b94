"""Keys and values stored in blocks of 8 and 4 bits: close to plain numbers, and as consistent."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.codecs import decode, encode

# Where attention chooses single keys, rounding may change the choice; see the reference cases.
ROWS_THAT_STAY_CLOSE = {"gemma4": 2, "gemma4moe": 2, "laguna": 1}

OWN = {"q8_0": 8e-3, "q4_0": 0.12}
"""What the codes lose of vectors like these, relative L2: half a step of 1/127 or 1/8 of the
largest of 32, spread evenly."""

GROWTH = 8
"""How much of that the layers after it may make of it."""

CODECS = pytest.mark.parametrize("codec", OWN)


@pytest.fixture
def tokens(case, reference):
    return reference(case)[0]


def vectors(drive):
    """All keys and values a driver's state holds, each as [n, dim]."""
    for pool in drive.state.pools:
        for section in pool.layout.sections.values():
            flat = pool.view(pool.data, section).flatten(0, 2)
            yield flat[flat.any(1)]


@CODECS
def test_logits_lose_no_more_than_the_codes_do(case, driver, reference, codec):
    tokens, expected = reference(case)
    plain, coded = driver(case, kv_codec="f32"), driver(case, kv_codec=codec)
    plain.feed({plain.open(): tokens})
    lost = [(decode(codec, *encode(codec, x)) - x).norm() / x.norm() for x in vectors(plain)]
    own = float(max(lost))
    assert 0 < own < OWN[codec]
    found = coded.feed({coded.open(): tokens})
    (logits,) = found.values()
    rows = slice(ROWS_THAT_STAY_CLOSE.get(case))
    error = (logits - expected)[rows].norm(dim=1) / expected[rows].norm(dim=1)
    assert own / 20 < float(error.max()) < own * GROWTH
    assert torch.isfinite(logits).all()


@CODECS
def test_drafts_trees_and_forks_are_linear_decoding(case, driver, tokens, row_error, codec):
    """Not to the last bit: a step of another size may round a number to the neighbouring code,
    which costs less than coding costs as a whole."""
    linear = driver(case, kv_codec=codec)
    lease = linear.open()
    rows = [
        linear.feed({lease: tokens[:70]})[lease],
        linear.feed({lease: tokens[70:77]}, rows=1)[lease],
    ]
    aside = linear.feed({lease: tokens[5:9]}, rows=1)[lease]

    drive = driver(case, kv_codec=codec)
    lease = drive.open()
    found = [drive.feed({lease: tokens[:70]})[lease]]
    chain = drive.draft({lease: ([*tokens[70:72], 5, 6], None)})[lease]
    drive.keep({lease: [0, 1]})
    tree = [tokens[72], 11, 12, tokens[73], tokens[74], tokens[75], 13, tokens[76]]
    drafted = drive.draft({lease: (tree, [-1, 0, 1, 0, 3, 4, 3, 5])})[lease]
    drive.keep({lease: [0, 3, 4, 5, 7]})
    found += [chain[:2], drafted[[0, 3, 4, 5, 7]]]
    assert row_error(torch.cat(found), torch.cat(rows)) < OWN[codec]
    fork = drive.kv_cache.tables.fork(lease, 512)
    assert row_error(drive.feed({fork: tokens[5:9]})[fork], aside) < OWN[codec]


@CODECS
def test_forks_evictions_and_recalls_are_exact_as_bytes(case, driver, tokens, codec):
    drive = driver(case, kv_codec=codec)
    lease = drive.open(paged=True)
    drive.feed({lease: tokens[:77]}, rows=64)
    before = drive.kept(lease)
    fork = drive.kv_cache.tables.fork(lease, 512)
    drive.apply()
    assert all(map(torch.equal, drive.kept(fork), before))

    drive.kv_cache.tables.evict(fork, 0)
    drive.kv_cache.tables.evict(lease, 0)
    drive.apply()
    assert len(drive.kept(lease)) < len(before)
    drive.feed({drive.open(): tokens[90:160]})
    drive.kv_cache.tables.recall(lease, 0)
    drive.kv_cache.tables.recall(fork, 0)
    drive.apply()
    drive.poison(lease)
    assert all(map(torch.equal, drive.kept(lease), before))
    # The next rows read recalled chunks only.
    assert torch.isfinite(drive.feed({lease: tokens[77:90]})[lease]).all()


@pytest.mark.interpreter
@pytest.mark.parametrize("codecs", [("q8_0", "q8_0"), ("q8_0", "q4_0"), ("q4_0", "f32")], ids=str)
def test_kernels_store_and_read_the_same_codes(driver, reference, row_error, codecs):
    tokens, _ = reference("qwen35")
    keys, values = codecs
    found = []
    for backend in ("reference", "triton"):
        ops = f"qk_rope_write={backend},gated_attention={backend}"
        drive = driver("qwen35", kv_codec=keys, v_codec=values, op=ops)
        lease = drive.open()
        rows = [drive.feed({lease: tokens[:66]})[lease]]
        rows.append(drive.draft({lease: (tokens[66:70], [-1, 0, 0, 2])})[lease])
        drive.keep({lease: [0, 2, 3]})
        rows.append(drive.feed({lease: tokens[70:72]}, rows=1)[lease])
        used = {(d.op, d.backend) for d in drive.loaded.ops.decisions.values()}
        assert {("qk_rope_write", backend), ("gated_attention", backend)} <= used
        found.append(torch.cat(rows))
    assert row_error(found[1], found[0]) < OWN[keys]
