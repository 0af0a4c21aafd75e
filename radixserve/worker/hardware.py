"""What this machine would give a worker: `python -m radixserve.worker.hardware CONFIG_JSON`.

Prints it as JSON, for `radixserve doctor`, which must not import torch; nor does this file before
it is run. Loads no weights and allocates no pool.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

from radixserve.config import Config, WorkerConfig

GIB = 1 << 30


class Hardware(Struct):
    """Each text is for people. Of a pair with a fault, one is empty."""

    torch: str  # its version, and for which CUDA it was built
    gpus: list[str]  # name, capability and memory
    vectors: str  # the widest instructions that torch uses on this CPU
    cores: int  # that this process may keep busy
    triton: str  # its version; "": not installed
    kernels: str = ""  # for CPUs: the instructions that they use
    kernels_fault: str = ""
    chosen: str = ""  # device, number format and attention
    chosen_fault: str = ""
    free: str = ""  # memory
    model_fault: str = ""
    pool: str = ""
    pool_fault: str = ""


def measure(config: WorkerConfig) -> Hardware:
    """Needs torch, which takes seconds. Without a `model_path`, a folder, it tells of no pool."""
    import torch

    from radixserve.worker.memory import free_memory
    from radixserve.worker.resolve import resolve, usable_cores
    from radixserve.worker.runner import backend_of
    from radixserve_kernels import cpu as cpu_kernels

    cuda = torch.version.cuda
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    found = Hardware(
        torch=f"{torch.__version__}, built for {f'CUDA {cuda}' if cuda else 'CPUs'}",
        gpus=[_gpu(index) for index in gpus],
        vectors=torch.backends.cpu.get_cpu_capability(),
        cores=usable_cores(),
        triton=_triton(),
        kernels_fault=cpu_kernels.available(),
    )
    if not found.kernels_fault:
        found.kernels = cpu_kernels.bodies()[0]
    try:
        config = resolve(config)
        backend_of(config)
    except (ValueError, ImportError) as error:
        found.chosen_fault = str(error)
        return found
    found.chosen = f"{config.dtype} on {config.device}, {config.attention_backend} attention"
    if config.model_path and _by_transformers(config):
        from radixserve.models.transformers_model import check_config

        try:
            check_config(Path(config.model_path))
        except ValueError as error:
            found.model_fault = str(error)
            return found
    try:
        free = free_memory(torch.device(config.device))
        found.free = f"{free / GIB:.1f} GiB free"
        if config.model_path:
            found.pool = _pool(config, free)
    except ValueError as error:
        found.pool_fault = str(error)
    return found


def _gpu(index: int) -> str:
    import torch

    at = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    memory = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    return f"{at.name} (capability {at.major}.{at.minor}, {memory})"


def _triton() -> str:
    try:
        return version("triton") if find_spec("triton") else ""
    except PackageNotFoundError:
        return "of unknown version"


def _by_transformers(config: WorkerConfig) -> bool:
    from radixserve.models.spec import TRANSFORMERS, implementation

    return implementation(Path(config.model_path), config.model_impl) == TRANSFORMERS


def _pool(config: WorkerConfig, free: int) -> str:
    """The pool beside weights that are as large as this model's, but are nowhere."""
    from radixserve.models.decoder import Decoder
    from radixserve.models.spec import read_spec
    from radixserve.worker.resolve import DTYPES
    from radixserve.worker.runner import pool_size

    if _by_transformers(config):
        return "what the pool gets is known when transformers has loaded the model"
    spec = read_spec(Path(config.model_path))
    length = config.context_length or spec.max_position
    decoder = Decoder(spec, device="meta", dtype=DTYPES[config.dtype], context_length=length)
    decoder.prepare()
    return str(pool_size(spec, config, free, decoder.weight_bytes))


def main() -> None:
    config = Config.decode(sys.argv[1])
    sys.stdout.write(msgspec.json.encode(measure(config.worker)).decode())


if __name__ == "__main__":
    main()
