"""What Python wrote, browsers of other makers compute too: the tests of vectors, in their own engines."""

import json
import re
from pathlib import Path

import pytest

from . import driven
from .conftest import OPEN
from .serving_pages import WEB, Pages

pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")

HERE = Path(__file__).parent / "standing_in"
STANDS = {"node:test": "test.js", "node:assert/strict": "assert.js", "node:fs": "fs.js"}
NODE = re.compile(r'from "(node:[^"]+|ws|\.\./node/[^"]+|\./(?!vectors\.js)[^"]+)"')
BEGIN = "const run = document.createElement('script'); run.type = 'module'; run.src = '/join/ran.js';"


def in_any_engine(path):
    """Whether a test needs no more of Node than what stands in for it."""
    text = path.read_text()
    stood_for = {"node:test", "node:assert/strict"}
    return '"./vectors.js"' in text and set(NODE.findall(text)) <= stood_for and "(t)" not in text


TESTS = sorted(filter(in_any_engine, (WEB / "tests").glob("*.test.js")))


def translated(path):
    """As it is, with what stands for Node."""
    text = path.read_text()
    for name, file in STANDS.items():
        text = text.replace(f'from "{name}"', f'from "/join/standing_in/{file}"')
    return text


@pytest.mark.parametrize("which", ["firefox", "webkit"])
def test_vectors_come_out_the_same_in_another_engine(which, tmp_path):
    if why := driven.missing(which):
        pytest.skip(why)
    if not (WEB / "vendor" / "msgpack" / "index.mjs").exists():
        pytest.skip("web/vendor is missing: npm ci && npm run vendor in web/")
    imports = "".join(f'import "./tests/{path.name}";\n' for path in TESTS)
    show = "document.title = JSON.stringify(await ran());\n"
    instead = {"/join/ran.js": f'import {{ ran }} from "./standing_in/test.js";\n{imports}{show}'}
    instead |= {f"/join/tests/{path.name}": translated(path) for path in [*TESTS, WEB / "tests/vectors.js"]}
    instead |= {f"/join/standing_in/{file}": (HERE / file).read_text() for file in STANDS.values()}
    pages = Pages(OPEN, {}, instead)
    try:
        with getattr(driven, which)(tmp_path / which) as tab:
            tab.open(pages.url)
            tab.run(f"{BEGIN} document.head.append(run);")
            match = tab.until(lambda: re.fullmatch(r"\{.*\}", tab.run("return document.title")))
            report = json.loads(match[0])
    finally:
        pages.shutdown()
    assert report["failed"] == []
    assert report["count"] > 200
