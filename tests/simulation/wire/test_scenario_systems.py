"""The fast simulator against the wire, for systems with families, memories, and more than a base to send."""

import msgspec
import pytest

from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks.kind_settings import KindSettings

from .test_scenario import both, check_equal, scenario

QUICK = {"epochs": 2, "lr": 0.05, "batch": 8}
BOARDS = 8


def system(name, tmp_path, bundle, *, deadline_s=100.0, family=(), rounds=3, generic=None, **full):
    """Eight boards under this system, one of them behind 500 bytes a second."""
    plain = scenario(tmp_path, BOARDS, rounds=rounds, round_deadline_s=deadline_s, generic=generic)
    settings = {"full": QUICK | full, "width-slice": QUICK | {"members": ["half"]}}
    kinds = tuple(KindSettings(name=kind, settings=own) for kind, own in settings.items())
    task = msgspec.structs.replace(plain.task, bundle=bundle, family=family, kinds=kinds)
    return msgspec.structs.replace(plain, task=systems.task_as_system(name, task))


@pytest.mark.slow
def test_they_agree_on_a_family_of_which_slow_devices_train_the_smaller(tmp_path, exported):
    """A full update takes 31 s behind the narrow link, half of the width a quarter of it."""
    setting = system("heterofl", tmp_path, exported.taught, deadline_s=20.0, family=(exported.half,))
    noted, served, finished = both(setting)
    assert check_equal(noted, served, finished) == {"full", "width-slice"}
    narrow = [ask for ask in noted.asks if ask.kind == "width-slice"]
    assert [(ask.round, ask.form, ask.straggler) for ask in narrow] == [(n, "half", True) for n in (1, 2, 3)]
    whole = [ask for ask in noted.asks if ask.kind == "full"]
    assert max(ask.bytes_down for ask in narrow if ask.round > 1) < min(
        ask.bytes_down for ask in whole if ask.round > 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moon", "fedadam", "random"])
def test_they_agree_on_what_is_kept_on_either_side(name, tmp_path, exported):
    """On devices what they trained last, on the aggregator an optimiser's moments; and fresh parameters."""
    noted, served, finished = both(system(name, tmp_path, exported.tuned))
    assert check_equal(noted, served, finished) == {"full"}
    assert [line.participants for line in noted.lines] == [BOARDS] * 3


@pytest.mark.slow
def test_they_agree_on_what_is_sent_beside_the_base(tmp_path, exported):
    """The full updates of round 3 are held near the few-shot classifier of round 2, which is sent with the
    base: 10 classes of 32 features.
    """
    setting = system("fscprox", tmp_path, exported.tuned, rounds=4, terms={"fscprox": {"mu": 1.0}})
    noted, served, finished = both(setting)
    assert check_equal(noted, served, finished) == {"full", "full+few-shot"}
    fetched = {ask.round: ask.bytes_down for ask in noted.asks if ask.device.startswith("0-phone")}
    assert fetched[3] - fetched[2] > 4 * 10 * 32
    assert fetched[4] == fetched[3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [("fedat", "attention-transfer"), ("fedkad", "prototypes"), ("fedsplit", "representatives")],
)
def test_they_agree_on_what_the_aggregator_teaches_with_samples_of_its_own(name, kind, tmp_path, exported):
    """Models of the family are taught there, and go to devices in the next round; feature maps come up."""
    family = () if name == "fedsplit" else (exported.small,)
    fields = {"deadline_s": 4000.0, "family": family, "rounds": 2, "generic": exported.generic}
    noted, served, finished = both(system(name, tmp_path, exported.taught, **fields))
    assert check_equal(noted, served, finished) == {kind}
    assert [line.participants for line in noted.lines] == [BOARDS] * 2
