"""The library compiled once for all tests, warnings as errors; seeded; one thread to begin with."""

import pytest
import torch

from radixserve_kernels import cpu
from radixserve_kernels.cpu import library
from radixserve_kernels.cpu.build import build


@pytest.fixture(scope="session", autouse=True)
def own_library(tmp_path_factory: pytest.TempPathFactory):
    """Built from the sources as they are, not taken from anybody's cache."""
    patch = pytest.MonkeyPatch()
    path = tmp_path_factory.mktemp("cpu") / library.NAME
    build(path, extra=("-Werror",))
    patch.setattr(library, "PACKAGED", path)
    library.kernels.cache_clear()
    yield path
    patch.undo()
    library.kernels.cache_clear()


@pytest.fixture(autouse=True)
def usual_settings(own_library):
    torch.manual_seed(0)
    yield
    cpu.load()
    cpu.set_threads(1)


@pytest.fixture(params=["avx512", "avx2", "portable"])
def body(request: pytest.FixtureRequest) -> str:
    """Each body that runs on this machine, one after the other."""
    if request.param not in cpu.bodies():
        pytest.skip(f"this machine has no {request.param}")
    cpu.load(request.param)
    return request.param


@pytest.fixture
def vector_bodies(own_library) -> list[str]:
    """Those that fuse products and sums, two at least: they agree to the last bit."""
    found = [name for name in cpu.bodies() if name != "portable"]
    if len(found) < 2:
        pytest.skip(f"this machine has {found} only")
    return found
