"""The browser's side goes into the wheel beside what serves it; all else stands in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

WEB = Path("web")
TO = Path("aggregator", "web", "browser")
FILES = ("page/**/*", "device/**/*", "*.js", "package.json", "package-lock.json")
"""Of web/. Its libraries are not among them: 50 MB that only a server needs (`device-runtime web fetch`)."""


class WithPages(build_py):
    """Copies what browsers load into the package; a checkout that is installed as such needs no copy."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for pattern in FILES:
            for file in WEB.glob(pattern):
                if file.is_file():
                    target = Path(self.build_lib, TO, file.relative_to(WEB))
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target)


setup(cmdclass={"build_py": WithPages})
