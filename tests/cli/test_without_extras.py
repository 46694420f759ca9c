"""In an installation without extras each command works, or names the extra that it needs."""

import json
import re
import subprocess
import sys

import pytest

from device_runtime.cli.table import COMMANDS, DEVICE
from device_runtime.extras import EXTRAS, extra_needed

PROGRAM = """
import contextlib, io, json, sys

class Without:
    def __init__(self, finder, lacking):
        self.finder, self.lacking = finder, lacking
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.lacking:
            return None
        return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

lacking, commands = json.loads(sys.argv[1])
sys.meta_path[:] = [Without(finder, lacking) for finder in sys.meta_path]
from device_runtime.cli import main
found = {}
for words in commands:
    out, wrong = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
        try:
            code = main(words)
        except SystemExit as error:
            code = error.code
        except BaseException as error:
            code, _ = "traceback", wrong.write(f"{type(error).__name__}: {error}")
    found[" ".join(words)] = (code, out.getvalue()[-300:], wrong.getvalue()[-500:])
print(json.dumps(found))
"""
EXAMPLES = {
    "serve": ["serve", "--rounds", "1", "--run-dir", "RUN"],
    "edge": ["edge", "mqtt://127.0.0.1:9", "--state", "STATE"],
    "models": ["models", "RUN"],
    "web": ["web", "fetch", "--into", "RUN"],
    "demo": ["demo", "--run-dir", "RUN"],
    "simulate": ["simulate", "digits", "--rounds", "1", "--run-dir", "RUN"],
    "compare": ["compare", "RUN"],
    "partition": ["partition", "--devices", "3"],
    "export": ["export", "wrn", "--input", "1,8,8", "--out", "RUN"],
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """What each command says where no module of any extra can be imported: code, output, errors."""
    folder = tmp_path_factory.mktemp("bare")
    lacking = sorted({module for extra in EXTRAS.values() for module in extra.modules})
    paths = {"RUN": str(folder / "run"), "STATE": str(folder / "state")}
    commands = [[name, "--help"] for name in COMMANDS] + [["--help"]]
    commands += [[paths.get(word, word) for word in words] for words in EXAMPLES.values()]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([lacking, commands])],
        capture_output=True, text=True, cwd=folder, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {
        words.replace(str(folder) + "/", ""): tuple(lines) for words, lines in json.loads(done.stdout).items()
    }


def test_help_of_every_command_is_shown(bare):
    for words, (code, out, wrong) in bare.items():
        if "--help" in words:
            assert code == 0 and out and not wrong, (words, code, wrong)


def test_a_command_that_cannot_run_names_its_extra(bare):
    for words, (code, _, wrong) in bare.items():
        name = words.split()[0]
        if name in EXAMPLES and "--help" not in words:
            assert code in (2, 6), (words, code, wrong)
            pattern = rf"needs the extra \S*{COMMANDS[name].needs}\S*: pip install 'device-runtime\["
            assert re.search(pattern, wrong), (words, wrong)


def test_no_command_of_a_device_needs_an_extra():
    assert {command.needs for command in COMMANDS.values() if command.group == DEVICE} == {""}


def test_the_sentence_names_the_extra_before_the_library():
    advice = extra_needed("serve", "aggregator", "rpds")
    assert advice.startswith("serve needs the extra aggregator: pip install 'device-runtime[aggregator]'")
