"""What pyproject.toml cannot say: the .pth file, and a build that leaves the sources untouched."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PTH = "ddops_sglang_cpu.pth"


class BuildPyWithPth(build_py):
    """Put the .pth beside the package, so that a wheel install lays it in site-packages."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_file(PTH, str(Path(self.build_lib) / PTH), preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib) / PTH)]


# setuptools writes build/ and *.egg-info beside the sources; a host may hold them read-only.
scratch = Path(tempfile.mkdtemp(prefix="ddops-sglang-cpu-"))
atexit.register(shutil.rmtree, scratch, ignore_errors=True)

setup(
    cmdclass={"build_py": BuildPyWithPth},
    options={
        "egg_info": {"egg_base": str(scratch)},
        "build": {"build_base": str(scratch / "build")},
        "bdist_wheel": {"bdist_dir": str(scratch / "wheel")},
    },
)
