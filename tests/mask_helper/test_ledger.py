"""A mask is in one set only, whatever happens to the helper between two requests."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from nacl.bindings import crypto_scalarmult_base

from device_runtime.mask_helper import ledger as ledgers
from device_runtime.mask_helper.ledger import FILE, Ledger
from device_runtime.mask_helper.summing import LedgerError, SumLimits, SumRefused, check_request, opened_set

from .conftest import SECRETS

THREE, NOW = ("pi-1", "pi-2", "pi-3"), 1_700_000_000


def ledger(folder, draw=os.urandom):
    return closing(Ledger(folder, draw))


def opened(request, content):
    check_request(request, SumLimits())
    return opened_set(SECRETS[0], request, content, SumLimits())


@pytest.fixture
def sets(masking):
    """A checked set of the devices, which may be asked for otherwise."""
    masks = masking()
    return lambda *devices, **other: opened(*masks.request(*devices, **other))


def test_a_set_is_noted_with_what_it_was(tmp_path, sets):
    with ledger(tmp_path) as book:
        assert book.record(sets(*THREE), NOW) == b""
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        assert db.execute("SELECT task, run, round FROM rounds").fetchall() == [("digits", "run-1", 4)]
        assert db.execute("SELECT kind, devices, made FROM sets").fetchall() == [("full", 3, NOW)]
        assert db.execute("SELECT device FROM used ORDER BY device").fetchall() == [
            ("pi-1",),
            ("pi-2",),
            ("pi-3",),
        ]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    "second", [("pi-1", "pi-2", "pi-3", "pi-4"), ("pi-1", "pi-2", "pi-4"), ("pi-3", "pi-4", "pi-5")]
)
def test_two_sets_of_a_round_that_share_a_device_are_refused_after_a_restart_too(
    tmp_path, sets, restarted, second
):
    """The difference of the sums of {1, 2, 3} and {1, 2, 3, 4} would be the update of device 4."""
    with ledger(tmp_path) as book:
        book.record(sets(*THREE), NOW)
        if not restarted:
            with pytest.raises(
                SumRefused, match=r"of \d devices: in another set of round 4 of task 'digits' before"
            ):
                book.record(sets(*second), NOW)
    with ledger(tmp_path) as book, pytest.raises(SumRefused, match="a mask is in one set only"):
        book.record(sets(*second), NOW)
    with closing(sqlite3.connect(tmp_path / FILE)) as db:  # pi-4 and pi-5 may still be summed with others
        assert db.execute("SELECT count(*) FROM sets").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM used").fetchone() == (3,)


def test_a_device_is_in_one_set_of_a_round_whatever_kinds_it_sends(tmp_path, masking):
    peft = masking(more={"kind": "peft"})
    with ledger(tmp_path) as book:
        book.record(opened(*masking().request(*THREE)), NOW)
        with pytest.raises(SumRefused, match="pi-1, pi-2 of 3 devices: in another set"):
            book.record(opened(*peft.request("pi-1", "pi-2", "pi-9")), NOW)


def test_many_devices_of_another_set_are_counted(tmp_path, sets):
    many = [f"pi-{number}" for number in range(10)]
    with ledger(tmp_path) as book:
        book.record(sets(*many), NOW)
        with pytest.raises(SumRefused, match="pi-0, pi-1, pi-2 and 7 more of 10 devices"):
            book.record(sets(*many, values=8), NOW)


@pytest.mark.parametrize("other", [{"round": 5}, {"run": "run-2"}, {"task": "speech"}])
def test_the_same_devices_are_summed_in_each_round_of_each_run_and_task(tmp_path, masking, other):
    with ledger(tmp_path) as book:
        book.record(opened(*masking().request(*THREE)), NOW)
        book.record(opened(*masking(more=other).request(*THREE)), NOW)
        with pytest.raises(SumRefused):
            book.record(opened(*masking(more=other).request(*THREE, "pi-4")), NOW)


def test_sets_of_a_round_without_a_common_device_are_summed(tmp_path, sets):
    with ledger(tmp_path) as book:
        book.record(sets(*THREE), NOW)
        book.record(sets("pi-4", "pi-5", "pi-6"), NOW)


def test_the_same_set_may_be_asked_for_again_under_any_id(tmp_path, sets):
    with ledger(tmp_path) as book:
        book.record(sets(*THREE), NOW)
    with ledger(tmp_path) as book:
        book.record(sets(*THREE), NOW + 60)
        book.record(sets(*reversed(THREE), id=b"\x01" * 32), NOW + 60)
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        assert db.execute("SELECT made FROM sets").fetchall() == [(NOW,)]


@pytest.mark.parametrize("other", [{"values": 10}, {"sums": 3}])
def test_a_set_is_not_summed_again_over_more_numbers(tmp_path, sets, other):
    with ledger(tmp_path) as book:
        book.record(sets(*THREE), NOW)
        with pytest.raises(SumRefused, match="in another set of round 4"):
            book.record(sets(*THREE, **other), NOW)


def test_an_id_names_one_request(tmp_path, sets):
    with ledger(tmp_path) as book:
        book.record(sets(*THREE, id=b"\x01" * 32), NOW)
        with pytest.raises(SumRefused, match="request 010101010101 was another one before"):
            book.record(sets("pi-4", "pi-5", "pi-6", id=b"\x01" * 32), NOW)


def test_the_noise_of_a_set_is_drawn_once(tmp_path, masking):
    masks = masking(sums=0, more={"noise_milli": 1000, "clip_milli": 1000, "exponents": ((5, 3),)})
    with ledger(tmp_path) as book:
        drawn = book.record(opened(*masks.request(*THREE)), NOW)
        other = book.record(opened(*masks.request("pi-4", "pi-5", "pi-6")), NOW)
    assert len(drawn) == 32 and drawn != other
    with ledger(tmp_path) as book:
        assert book.record(opened(*masks.request(*THREE)), NOW) == drawn


def test_the_key_stays_and_only_the_owner_can_read_it(tmp_path, sets):
    folder = tmp_path / "new" / "club"
    with ledger(folder, lambda size: b"\x07" * size) as book:
        assert (book.secret, book.public) == (b"\x07" * 32, crypto_scalarmult_base(b"\x07" * 32))
        book.record(sets(*THREE), NOW)
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        assert len(list(folder.iterdir())) == 3  # with the log, and its index
    with ledger(folder) as book:
        assert book.secret == b"\x07" * 32
    with ledger(tmp_path / "other") as book:
        assert book.secret != b"\x07" * 32


def test_without_the_ledger_there_is_no_key_that_opens_what_was_summed(tmp_path):
    with ledger(tmp_path) as book:
        before = book.secret
    for path in tmp_path.iterdir():
        path.unlink()
    with ledger(tmp_path) as book:
        assert book.secret != before


def test_a_ledger_of_another_version_or_a_damaged_one_is_named(tmp_path):
    with ledger(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute("PRAGMA user_version=9")
    with pytest.raises(LedgerError, match=r"masks.sqlite is of version 9, expected 1"):
        Ledger(tmp_path, os.urandom)
    (tmp_path / FILE).write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(LedgerError, match=r"cannot use .*masks.sqlite: file is not a database"):
        Ledger(tmp_path, os.urandom)
    with pytest.raises(LedgerError, match="cannot use"):
        Ledger(tmp_path / FILE, os.urandom)


def test_a_full_disk_notes_nothing(tmp_path, sets):
    with ledger(tmp_path) as book:
        [pages] = book._db.execute("PRAGMA page_count").fetchone()
        book._db.execute(f"PRAGMA max_page_count={pages}")
        many = [f"pi-{number}" for number in range(2000)]
        with pytest.raises(LedgerError, match="full"):
            book.record(sets(*many), NOW)
    with ledger(tmp_path) as book:
        book.record(sets(*many[:3]), NOW)


KILLED = """
import os, signal, sys
sys.path[:] = {path!r}
from pathlib import Path
from device_runtime.mask_helper.ledger import Ledger
from tests.mask_helper.conftest import MaskingRound
from tests.mask_helper.test_ledger import NOW, THREE, opened

one, asked = Ledger(Path({folder!r}), os.urandom), MaskingRound()
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
{rest}
"""
BEFORE_COMMIT = """
one._db.set_trace_callback(lambda statement: statement == "COMMIT" and kill())
one.record(opened(*asked.request(*THREE)), NOW)
"""
AFTER_COMMIT = """
one.record(opened(*asked.request(*THREE)), NOW)
kill()
"""
MANY = """
number = int({began})
while True:
    one.record(opened(*asked.request(*(f"pi-{{number}}-{{at}}" for at in range(50)))), NOW)
    print(number, flush=True)
    number += 1
"""


def killed(folder, rest):
    """A process that is killed by itself; what it said."""
    code = KILLED.format(path=sys.path, folder=str(folder), rest=rest)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_process_killed_before_the_commit_has_noted_nothing(tmp_path, sets):
    killed(tmp_path, BEFORE_COMMIT)
    with ledger(tmp_path) as book:
        book.record(sets("pi-1", "pi-2", "pi-4"), NOW)


def test_a_process_killed_after_the_commit_has_noted_the_set(tmp_path, sets):
    killed(tmp_path, AFTER_COMMIT)
    with ledger(tmp_path) as book:
        with pytest.raises(SumRefused, match="in another set"):
            book.record(sets("pi-1", "pi-2", "pi-4"), NOW)
        book.record(sets(*THREE), NOW)


@pytest.mark.parametrize("moment_s", [0.0, 0.004, 0.011, 0.023])
def test_a_process_killed_at_any_moment_has_noted_whole_sets_and_all_that_it_told(tmp_path, moment_s):
    code = KILLED.format(path=sys.path, folder=str(tmp_path), rest=MANY.format(began=0))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        numbers = [int(process.stdout.readline()) for _ in range(5)]
        try:
            process.wait(moment_s or 1e-4)
        except subprocess.TimeoutExpired:
            process.kill()
        numbers += map(int, process.stdout.read().split())
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        counts = dict(db.execute('SELECT "set", count(*) FROM used GROUP BY "set"'))
        noted = dict(db.execute("SELECT number, devices FROM sets").fetchall())
    assert counts == noted == dict.fromkeys(noted, 50)
    assert len(numbers) <= len(noted) <= len(numbers) + 1


def test_two_processes_on_one_ledger_note_a_device_once(tmp_path, sets):
    with ledger(tmp_path) as book, ledger(tmp_path) as other:
        assert book.secret == other.secret
        book.record(sets(*THREE), NOW)
        with pytest.raises(SumRefused, match="in another set"):
            other.record(sets("pi-3", "pi-4", "pi-5"), NOW)


def test_the_version_of_the_tables_is_written(tmp_path):
    with ledger(tmp_path) as book:
        assert book._db.execute("PRAGMA user_version").fetchone() == (ledgers.VERSION,)
        assert book._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert book._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
