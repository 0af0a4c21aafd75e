"""Adds the library of CPU kernels to the wheel; says so where there is no C compiler for it."""

import importlib.util
import os
import warnings
from pathlib import Path
from types import ModuleType

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

FOLDER = Path("radixserve_kernels", "cpu")


def builder() -> ModuleType:
    """radixserve_kernels/cpu/build.py, without the packages around it, which need torch."""
    place = Path(__file__).parent / FOLDER / "build.py"
    spec = importlib.util.spec_from_file_location("radixserve_cpu_build", place)
    assert spec is not None and spec.loader is not None, "a path to a file has both"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithLibrary(build_py):
    """Compiles into the build folder; an editable installation compiles on first use instead."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        build = builder()
        try:
            build.build(Path(self.build_lib, FOLDER, build.NAME), os.environ.get("CC"))
        except build.BuildError as error:
            warnings.warn(f"without CPU kernels, torch computes instead: {error}", stacklevel=1)


class PlatformWheel(bdist_wheel):
    """One for each platform, but for no Python in particular: ctypes loads the library."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=WithLibrary,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
)
