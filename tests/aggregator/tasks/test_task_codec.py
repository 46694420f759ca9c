from argparse import ArgumentParser

import pytest

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.systems import with_codec
from device_runtime.aggregator.tasks.task import Task, decode
from device_runtime.cli.operator import serve as command
from device_runtime.strategies.interface import capabilities


def task(*kinds):
    return Task(bundle="b", kinds=tuple(KindSettings(name=name) for name in kinds))


def test_kinds_that_can_send_by_the_codec_and_the_others_stay_exact():
    coded = with_codec(task("full", "few-shot", "zeroth-order", "class-means"), "delta+int8")
    assert [capabilities.codec_of(kind.strategy).word for kind in coded.kinds] == [
        "delta+int8",
        "delta+int8",
        "",
        "",
    ]


def test_a_codec_stands_over_that_of_a_kind_and_the_empty_word_takes_it_away():
    before = Task(bundle="b", kinds=(KindSettings(name="full", settings={"epochs": 2, "codec": "half"}),))
    for word in ("delta+half", ""):
        kind = with_codec(before, word).kinds[0]
        assert (kind.strategy.codec, kind.strategy.epochs) == (word, 2)


def test_a_codec_travels_with_the_kind_and_stays_in_the_task_s_file():
    coded = with_codec(task("full"), "delta+int8+deflate")
    assert decode(coded.json()).kinds[0].strategy.codec == "delta+int8+deflate"
    assert b"delta+int8+deflate" in bytes(coded.offer_kinds(1)[0].settings)


@pytest.mark.parametrize(
    ("kinds", "word", "text"),
    [
        (("full",), "lzma", "no codec is called 'lzma': expected some of delta, then half or int8"),
        (
            ("zeroth-order", "class-means"),
            "half",
            "codec half: the numbers of zeroth-order, class-means are sent",
        ),
    ],
)
def test_what_cannot_be_coded_is_refused_with_what_was_expected(kinds, word, text):
    with pytest.raises(TaskError, match=text):
        with_codec(task(*kinds), word)


def test_serve_takes_a_codec_for_all_kinds_of_a_system():
    parser = ArgumentParser()
    command.add_arguments(parser)
    coded = command.task_of(parser.parse_args(["--bundle", "b", "--system", "fedavg+", "--codec", "half"]))
    assert {capabilities.codec_of(kind.strategy).word for kind in coded.kinds} == {"half"}
    with pytest.raises(TaskError, match="no codec is called 'gzip'"):
        command.task_of(parser.parse_args(["--bundle", "b", "--codec", "gzip"]))
