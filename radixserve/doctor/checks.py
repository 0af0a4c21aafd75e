"""The checks of one set of flags, in the order in which they are told."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.config import Config
from radixserve.doctor.finding import Finding, fail, ok, warn

if TYPE_CHECKING:
    from radixserve.parsing.format import Format
    from radixserve.tokenizer.traits import Traits
    from radixserve.tokenizer.vocabulary import Vocabulary
    from radixserve.worker.hardware import Hardware

SOCKET_PATH = 107  # bytes that Linux has for the path of a unix socket (man 7 unix)
SHARED_MEMORY = Path("/dev/shm")
GPU = Path("/dev/nvidia0")
HARDWARE_SECONDS = 300.0  # torch's first import from a slow disk may take a minute
SAMPLE = "Hello, Grüße, 世界 🎉\n"

USER = {"role": "user", "content": "Hello"}


class Examination:
    """Later checks use what earlier ones have found, and say nothing if it was not found."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._folder: Path | None = None
        self._vocabulary: Vocabulary | None = None

    def findings(self) -> Iterator[Finding]:
        """All of them, as they come. A check that breaks is a finding too."""
        checks: tuple[Callable[[], Iterator[Finding]], ...] = (
            self._port,
            self._sockets,
            self._shared_memory,
            self._model,
            self._tokenizer,
            self._chat,
            self._hardware,
        )
        for check in checks:
            name = check.__name__.strip("_").replace("_", " ")
            try:
                yield from check()
            except Exception as error:
                yield fail(name, f"{type(error).__name__}: {error}")

    def _port(self) -> Iterator[Finding]:
        from radixserve.api.process import bind

        server = self._config.server
        where = f"{server.host} port {server.port}"
        try:
            bind(server).close()
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            advice = "end what listens there, or give another --port" if taken else "give --host"
            yield fail("port", f"{where}: {error.strerror}", advice)
            return
        yield ok("port", f"{where} is free")
        if server.host not in ("127.0.0.1", "::1", "localhost") and not server.api_key:
            yield warn("port", "all who reach this address may use the server", "give --api-key")

    def _sockets(self) -> Iterator[Finding]:
        """The processes' sockets: their folder, the length of their paths, and one round trip."""
        from radixserve.channel import Inbox, Outbox, address
        from radixserve.launch import CHILDREN, PREFIX
        from radixserve.messages import Stop

        advice = "set TMPDIR to a short path that you may write to"
        try:
            folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-")
        except OSError as error:
            yield fail("sockets", f"no folder for sockets: {error.strerror or error}", advice)
            return
        with folder as run_dir:
            longest = max(len(os.fsencode(address(run_dir, name))) for name, _ in CHILDREN.values())
            longest -= len("ipc://")
            if longest > SOCKET_PATH:
                text = f"{longest} bytes in a socket's path, {SOCKET_PATH} are allowed"
                yield fail("sockets", text, advice)
                return
            inbox: Inbox[Stop] = Inbox(run_dir, "worker", Stop)
            outbox: Outbox[Stop] = Outbox(run_dir, "worker")
            outbox.send([Stop("doctor")])
            came = inbox.receive(5.0)
            outbox.close(linger=0)
            inbox.close()
        if came == [Stop("doctor")]:
            yield ok("sockets", f"a message went over ZeroMQ in {tempfile.gettempdir()}")
        else:
            yield fail("sockets", "a message over ZeroMQ did not arrive", advice)

    def _shared_memory(self) -> Iterator[Finding]:
        name = str(SHARED_MEMORY)
        if not os.access(SHARED_MEMORY, os.W_OK):
            advice = "libraries of threads and GPUs may want it; in a container: --shm-size 1g"
            yield warn(name, "is not there or not writable", advice)
        else:
            free = shutil.disk_usage(SHARED_MEMORY).free / (1 << 30)
            yield ok(name, f"writable, {free:.1f} GiB free")

    def _model(self) -> Iterator[Finding]:
        """As the server does it: a GGUF file is converted if it was not yet."""
        from radixserve.launch import prepare
        from radixserve.models.spec import TRANSFORMERS, architecture_of, implementation, read_spec

        try:
            config = prepare(self._config)
        except (RuntimeError, ValueError, OSError) as error:
            yield fail("model", str(error))
            return
        self._config = config
        self._folder = Path(config.worker.model_path)
        if implementation(self._folder, config.worker.model_impl) == TRANSFORMERS:
            name = architecture_of(self._folder)
            text = f"{config.server.served_model_name}: {name}, by transformers, in {self._folder}"
            yield ok("model", text)
            return
        spec = read_spec(self._folder)
        asked = config.worker.context_length
        if asked > spec.max_position:
            text = f"--context-length {asked} is more than the model's {spec.max_position}"
            yield fail("model", text, "give less, or nothing")
            return
        yield ok(
            "model",
            f"{config.server.served_model_name}: {spec.architecture}, {spec.num_layers} layers,"
            f" {spec.dtype}, context of {asked or spec.max_position} tokens, in {self._folder}",
        )

    def _tokenizer(self) -> Iterator[Finding]:
        if self._folder is None:
            return
        from radixserve.tokenizer.vocabulary import Vocabulary

        self._vocabulary = vocabulary = Vocabulary(self._folder)
        if not vocabulary.eos_ids:
            yield warn("tokenizer", "no token ends an answer: all run to their limit")
        ids = vocabulary.encode(SAMPLE, add_special_tokens=False)
        text = b"".join(vocabulary.token_bytes(id) for id in ids).decode(errors="replace")
        if text.strip() != SAMPLE.strip():
            yield warn("tokenizer", f"{SAMPLE!r} comes back as {text!r}")
        else:
            yield ok("tokenizer", f"{len(ids)} tokens for {SAMPLE!r}, and back")

    def _chat(self) -> Iterator[Finding]:
        """The template, and what it tells of the answers."""
        if self._folder is None or self._vocabulary is None:
            return
        from msgspec.structs import replace

        from radixserve.api.front import answer_format, tells_tools
        from radixserve.tokenizer.invalid import InvalidRequest
        from radixserve.tokenizer.templates import find_template
        from radixserve.tokenizer.traits import Traits, traits_of

        server, vocabulary, traits = self._config.server, self._vocabulary, Traits()
        template = find_template(self._folder, vocabulary, server.chat_template)
        format = answer_format(server, template, vocabulary.special_tokens)
        if template is None:
            advice = "give --chat-template FILE, or use /v1/completions only"
            yield warn("chat", "the model has no chat template", advice)
        else:
            try:
                template.render([USER])
            except InvalidRequest as error:
                yield fail("chat", error.message, "give --chat-template FILE")
                return
            traits = traits_of(template, vocabulary)
            if not reasons(format):
                traits = replace(traits, drops_reasoning=False)  # there is none
            notes = traits.notes()
            yield from (warn("chat", f"the template {note}") for note in notes)
            if not notes:
                yield ok("chat", "the template renders, and each prompt begins as the one before")
        yield answers(format, traits, told=tells_tools(server, template, traits, format))

    def _hardware(self) -> Iterator[Finding]:
        """In a process of its own, since it imports torch."""
        import msgspec

        from radixserve.config import worker_environment
        from radixserve.worker.hardware import Hardware

        worker = msgspec.structs.replace(
            self._config.worker, model_path=str(self._folder) if self._folder else ""
        )
        told = msgspec.structs.replace(self._config, worker=worker).encode()
        done = subprocess.run(
            [sys.executable, "-m", "radixserve.worker.hardware", told],
            capture_output=True,
            text=True,
            check=False,
            timeout=HARDWARE_SECONDS,
            env=worker_environment(),
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            yield fail("torch", last, "pip install torch, for this machine")
            return
        yield from judged(msgspec.json.decode(done.stdout, type=Hardware), gpu=GPU.exists())


def answers(found: "Format | None", traits: "Traits", *, told: bool) -> Finding:
    """Which tool calls and thoughts are read out of them."""
    if found is not None and (found.calls or found.harmony):
        calls = f"are read in the format {found.name}"
    elif traits.prints_tools:
        text = "the template knows tools, but in no format that is known here"
        return warn("answers", text, "give --tool-call-parser")
    elif told:
        calls = "are told in words, as the template knows none"
    else:
        calls = "are not told"
    looked = "is" if reasons(found) else "is not"
    return ok("answers", f"tools {calls}; reasoning {looked} looked for")


def reasons(found: "Format | None") -> bool:
    """Whether answers have reasoning that is read apart."""
    return found is not None and (found.thoughts is not None or found.harmony)


def judged(found: "Hardware", *, gpu: bool) -> Iterator[Finding]:
    """What the hardware means. `gpu`: whether the system has one, whatever torch sees."""
    yield ok("torch", found.torch)
    if found.gpus:
        yield from (ok("gpu", text) for text in found.gpus)
    elif gpu:
        yield warn("gpu", "there is one, but this torch does not see it", "install a CUDA build")
    else:
        yield ok("gpu", "none: the CPU computes")
    cpu = f"{found.cores} cores, {found.vectors}"
    if found.vectors in ("DEFAULT", "NO AVX"):
        yield warn("cpu", cpu, "without AVX2 a CPU is several times slower")
    else:
        yield ok("cpu", cpu)
    yield _kernels(found)
    if found.gpus and not found.triton:
        yield fail("triton", "not installed, and a GPU needs it", "pip install '.[gpu]'")
    else:
        yield ok("triton", found.triton or "not installed, not needed on a CPU")
    if found.chosen_fault:
        yield fail("worker", found.chosen_fault)
    else:
        yield ok("worker", f"{found.chosen}, {found.free}")
    if found.model_fault:
        yield fail("model", found.model_fault)
    if found.pool_fault:
        yield fail("memory", found.pool_fault)
    elif found.pool:
        yield ok("memory", found.pool)


def _kernels(found: "Hardware") -> Finding:
    """Those in C, for CPUs."""
    if not found.kernels_fault:
        return ok("kernels", f"built for {found.kernels}")
    if found.gpus:
        return ok("kernels", "those for CPUs cannot be built, and are not needed on a GPU")
    advice = "install a C compiler: torch computes instead, more slowly and not bit-exact"
    return warn("kernels", found.kernels_fault, advice)
