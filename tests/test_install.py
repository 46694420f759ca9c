"""What is installed on a device, and what importing it brings in."""

import argparse
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from device_runtime.cli.research.new import TEMPLATES
from device_runtime.cli.table import COMMANDS
from device_runtime.extras import EXTRAS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent


def modules_after(statement):
    """All modules in a new process after this statement: names of others' packages, of ours in two parts."""
    program = f"{statement}\nimport sys, json; print(json.dumps([*sys.modules]))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", program], text=True))
    return {".".join(name.split(".")[: 2 if name.startswith("device_runtime.") else 1]) for name in loaded}


@pytest.mark.parametrize(
    "statement",
    [
        "import device_runtime",
        "import device_runtime.cli",
        "import device_runtime.cli.on_device.join",
        "from device_runtime.cli.on_device import doctor, explain, join, profile",
    ],
)
def test_the_device_imports_neither_torch_nor_aggregator_nor_simulation(statement):
    loaded = modules_after(statement)
    assert not loaded & {
        "torch",
        "onnx",
        "onnxscript",
        "device_runtime.aggregator",
        "device_runtime.simulation",
        "amqtt",
        "rich",
        "sklearn",
    }


def test_a_device_at_work_brings_in_no_torch_either():
    loaded = modules_after(
        "from device_runtime.models.bundles.bundle import Bundle, shipped_folder\n"
        "from device_runtime.models.available_engines.available import open_model\n"
        "import numpy as np, device_runtime.strategies.kinds.registry as r\n"
        "from device_runtime.strategies.interface.kind import LocalData, Run\n"
        "model = open_model(Bundle.open(shipped_folder('digits-wrn-10-1')))\n"
        "data = LocalData(np.zeros((8, 1, 8, 8), np.float32), np.arange(8))\n"
        "for name in r.DEFAULT_KINDS: r.make(name).train(model, data, Run(1, 'd', lambda: 0.0, 1.0))"
    )
    assert "onnxruntime" in loaded
    assert not loaded & {"torch", "onnx", "device_runtime.aggregator", "device_runtime.simulation"}


def test_a_device_s_dependencies_are_the_few_that_are_priced():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [requirement.split(">")[0].split(";")[0].strip() for requirement in project["dependencies"]]
    assert list(dict.fromkeys(names)) == [
        "numpy",
        "onnxruntime",
        "paho-mqtt",
        "psutil",
        "pynacl",
        "msgspec",
        "safetensors",
        "simplejpeg",
        "platformdirs",
        "tabulate",
        "tomli",
    ]
    text = (ROOT / "pyproject.toml").read_text()
    assert all(f'"{name}' in text and "#" in text.split(f'"{name}', 1)[1].split("\n")[0] for name in names)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, built from this checkout and installed into a folder of its own."""
    pytest.importorskip("setuptools", minversion="77", reason="builds the wheel")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, whose files alone go into the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, source], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


@pytest.fixture(scope="module")
def bare(installed, tmp_path_factory):
    """The Python of an environment that has the wheel and what a device installs, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "wheel.pth").write_text(f"{installed}\n")
    for requirement in base_requirements():
        brought = metadata.distribution(requirement)
        for top in {file.parts[0] for file in brought.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(brought.locate_file(top))
    return folder / "bin" / "python"


def base_requirements():
    """The distributions that the wheel needs without any extra, and those that they need."""
    names, left = set(), ["device-runtime"]
    while left:
        for text in metadata.requires(left.pop()) or ():
            requirement = Requirement(text)
            name = requirement.name.lower()
            if name not in names and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
                names.add(name)
                left.append(name)
    return sorted(names)


def bare_environment():
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "COLUMNS")}


def bare_run(bare, installed, *words, **options):
    return subprocess.run(
        [bare, installed / "bin" / "device-runtime", *words],
        cwd=bare.parent,
        env=bare_environment(),
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_the_bare_environment_has_no_module_of_an_extra(bare):
    modules = {module for extra in EXTRAS.values() for module in extra.modules}
    modules |= {"PIL", "ray", "scipy", "pydantic", "websockets", "transformers", "pytest", "pip"}
    program = "import sys; from importlib.util import find_spec; print([*filter(find_spec, sys.argv[1:])])"
    modules_ = subprocess.check_output([bare, "-c", program, *modules], text=True, cwd=bare.parent)
    assert modules_ == "[]\n"


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_a_device_install_lists_all_commands_with_the_extra_that_they_need(words, bare, installed):
    process = bare_run(bare, installed, *words)
    assert (process.returncode, process.stderr) == (0, "")
    text = " ".join(process.stdout.split())
    for name, command in COMMANDS.items():
        extra = f" (needs the extra `{command.needs}`)" if command.needs else ""
        assert f" {name} {command.help}{extra} " in text
    assert "pip install 'device-runtime[EXTRA]'" in text


def test_a_device_install_says_its_version(bare, installed):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    process = bare_run(bare, installed, "--version")
    assert (process.returncode, process.stdout, process.stderr) == (0, f"{version}\n", "")


@pytest.fixture(scope="module")
def helps(bare):
    """The help of each command, all in one process."""
    program = """
import sys
from device_runtime.cli import main
for name in sys.argv[1:]:
    try:
        main([name, "--help"])
    except SystemExit as left:
        assert not left.code
    print("\f")
"""
    process = subprocess.run(
        [bare, "-c", program, *COMMANDS],
        cwd=bare.parent,
        env=bare_environment(),
        capture_output=True,
        text=True,
    )
    assert (process.returncode, process.stderr) == (0, "")
    return dict(zip(COMMANDS, process.stdout.split("\f\n")[:-1], strict=True))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_device_install_has_help_of_each_command(name, helps):
    command, text = COMMANDS[name], helps[name]
    assert text.startswith(f"usage: device-runtime {name} ")
    assert command.help in " ".join(text.split())
    assert f"\nExample: {command.example}\n" in text
    needs = f"Needs: pip install 'device-runtime[{command.needs}]'"
    assert (needs in text) == bool(command.needs)


@pytest.mark.parametrize(
    "name, option", [("join", "--data"), ("serve", "--rounds"), ("edge", "--port"), ("models", "--rollback")]
)
def test_a_device_install_lists_the_options_also_where_an_extra_is_missing(name, option, helps):
    assert f"\n  {option} " in helps[name]


def test_a_device_install_suggests_the_command_that_was_meant(bare, installed):
    ended = bare_run(bare, installed, "serv")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "did you mean serve?" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, extra, code",
    [
        (("serve", "--bundle", "digits-wrn-10-1"), "aggregator", 6),
        (("demo",), "simulation", 2),
        (("simulate",), "simulation", 2),
    ],
)
def test_a_device_install_names_the_extra_that_a_command_needs(words, extra, code, bare, installed):
    ended = bare_run(bare, installed, *words)
    assert (ended.returncode, ended.stdout) == (code, "")
    [line] = ended.stderr.splitlines()
    assert f": pip install 'device-runtime[{extra}]'" in line


def test_a_device_install_reads_photos(bare, installed, tmp_path):
    from PIL import Image

    (tmp_path / "photos" / "7").mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (400, 300), (90 * number, 60, 60)).save(tmp_path / "photos" / "7" / f"{number}.jpg")
    ended = bare_run(bare, installed, "data", "check", tmp_path / "photos")
    assert ended.returncode == 0, ended.stderr
    assert "3  picture 400x300 RGB 8 bits" in ended.stdout


def test_the_list_of_commands_imports_none_of_them(bare):
    """So that help answers at once, on a small board too."""
    program = (
        "import sys; from device_runtime.cli import main; main(['--help']); main(['serv']); "
        "print(sorted(sys.modules))"
    )
    loaded = subprocess.check_output(
        [bare, "-c", program], text=True, stderr=subprocess.DEVNULL, cwd=bare.parent
    ).splitlines()[-1]
    for module in ("numpy", "onnxruntime", "msgspec", "paho", "psutil"):
        assert repr(module) not in loaded
    ours = set(re.findall(r"'(device_runtime[^']*)'", loaded))
    assert ours == {
        "device_runtime", "device_runtime.cli", "device_runtime.cli.table", "device_runtime.console",
        "device_runtime.extras", "device_runtime.machine_readings", "device_runtime.system_errors",
    }  # fmt: skip


def test_python_m_device_runtime_is_the_command(bare, installed):
    text = subprocess.check_output([bare, "-m", "device_runtime", "--help"], text=True, cwd=bare.parent)
    assert text == bare_run(bare, installed, "--help").stdout


@pytest.fixture
def crowded(tmp_path):
    """A folder with packages of a user's own, named as ours are; importing one ends the process."""
    for name in ("aggregator", "broker", "client", "edge", "models", "profiles", "simulation", "strategies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package was imported')")
    return tmp_path


EXPLAIN = "from device_runtime.cli import main; main(['explain', '--deadline', '60'])"


@pytest.mark.parametrize("way", ["command", "module", "script", "python -c", "PYTHONPATH=."])
def test_the_installed_wheel_runs_beside_a_user_s_own_packages(way, bare, installed, crowded):
    (crowded / "mine.py").write_text(EXPLAIN)
    words = {
        "command": [installed / "bin" / "device-runtime", "explain", "--deadline", "60"],
        "module": ["-m", "device_runtime", "explain", "--deadline", "60"],
        "script": ["mine.py"],
        "python -c": ["-c", EXPLAIN],
        "PYTHONPATH=.": [installed / "bin" / "device-runtime", "explain", "--deadline", "60"],
    }[way]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if way == "PYTHONPATH=.":
        env["PYTHONPATH"] = "."
    ended = subprocess.run([bare, *words], cwd=crowded, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "->" in ended.stdout


EXPORT = "export mynet:build --input 1,8,8 --labels a,b --out bundle"


def test_a_user_s_own_network_is_exported_from_a_package_named_models(installed, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").touch()
    (tmp_path / "models" / "cnn.py").write_text("WIDTH = 8\n")
    (tmp_path / "mynet.py").write_text(
        "import torch\nfrom models.cnn import WIDTH\n\n\n"
        "def build():\n"
        "    return torch.nn.Sequential(\n"
        "        torch.nn.Flatten(), torch.nn.Linear(64, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 2)\n"
        "    )\n"
    )
    ended = subprocess.run(
        [sys.executable, installed / "bin" / "device-runtime", *EXPORT.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "bundle" / "manifest.json").exists()


def test_the_wheel_installs_one_package_with_its_content_and_no_tests(installed):
    assert {path.name for path in installed.iterdir()} - {"bin", "__pycache__"} == {
        "device_runtime", f"device_runtime-{metadata.version('device-runtime')}.dist-info",
    }  # fmt: skip
    content = installed / "device_runtime" / "_content"
    files = {str(path.relative_to(content)) for path in content.rglob("*") if path.is_file()}
    assert {
        "broker/PROTOCOL.md",
        *(f"examples/new/{name}" for name in TEMPLATES),
        "models/bundles/digits-wrn-10-1/weights.safetensors",
        "profiles/boards.toml",
        "profiles/fleets/phones.toml",
        "profiles/scenarios/digits.toml",
    } <= files


def test_a_device_install_writes_a_new_project(bare, installed, tmp_path):
    ended = bare_run(bare, installed, "new", tmp_path / "shapes")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert {path.name for path in (tmp_path / "shapes").iterdir()} == {*TEMPLATES, "data"}


def test_the_wheel_holds_the_page_that_browsers_join_by_and_not_its_libraries(installed):
    """Which are 50 MB that a device has no use for: `device-runtime web fetch`."""
    page = installed / "device_runtime" / "_content" / "web"
    files = {str(path.relative_to(page)): path.stat().st_size for path in page.rglob("*") if path.is_file()}
    paths = subprocess.check_output(["git", "ls-files", "web"], cwd=ROOT, text=True).splitlines()
    here = {path.removeprefix("web/") for path in paths}
    served = {path for path in here if path.startswith(("page/", "device/"))}
    assert {"page/index.html", "device/bytes.js", "vendor.js", "package-lock.json"} <= set(files)
    assert served <= set(files)
    assert set(files) <= here
    assert {path.split("/")[0] for path in files if "/" in path} == {"page", "device"}
    assert sum(files.values()) < 1_000_000


def test_the_device_s_image_starts_a_command_that_there_is():
    """Where the samples are is the one option that its default has; the enrolment tells the rest."""
    from device_runtime.cli.on_device import join

    text = (ROOT / "deploy" / "device.Dockerfile").read_text()
    [entry], words = (
        json.loads(line.split(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(("ENTRYPOINT", "CMD"))
    )
    parser = argparse.ArgumentParser()
    join.add_arguments(parser)
    options = parser.parse_args(words[1:])
    assert (entry, words[0], options.broker, str(options.data)) == (
        "device-runtime",
        "join",
        None,
        "/samples",
    )


def test_every_extra_of_the_table_is_there():
    """docs/install.md tells what each adds."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert [
        extra for extra in extras if extra != "dev" and not re.search(rf"(`|^ *){extra}\b", page, re.M)
    ] == []
