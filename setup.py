"""Content that lies beside the package goes into the wheel; all else stands in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

TO = Path("device_runtime", "_content")
CONTENT = {
    "broker": ("*.md",),
    "deploy": ("site/**/*",),
    "examples": ("new/*",),
    "models": ("bundles/**/*",),
    "profiles": ("*.toml", "fleets/*.toml", "scenarios/*.toml"),
    "web": ("page/**/*", "device/**/*", "*.js", "package.json", "package-lock.json"),
}
"""Folder -> what of it ships. The page's libraries do not: 50 MB that only a server needs
(`device-runtime web fetch`).
"""


class WithContent(build_py):
    """Copies content into the package; a checkout that is installed as such needs no copy."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for folder, patterns in CONTENT.items():
            for file in (one for pattern in patterns for one in Path(folder).glob(pattern) if one.is_file()):
                target = Path(self.build_lib, TO, file)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


setup(cmdclass={"build_py": WithContent})
