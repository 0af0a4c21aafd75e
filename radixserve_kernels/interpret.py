"""Runs the kernels on CPU tensors in Triton's interpreter: for tests and toy sizes, not for speed.

Called by whoever wants triton kernels without a GPU, before anything imports triton (transformers'
model files do). The one file of the package that touches the environment: Triton reads the switch
there when it is imported.
"""

import os
import sys

SWITCH = "TRITON_INTERPRET"


def enable() -> None:
    """Switch the interpreter on for this process and the ones it starts. Idempotent.

    Raises RuntimeError if triton is already imported without it: its own library of device
    functions has then been bound to the compiler, and no later switch reaches it.
    """
    if "triton" in sys.modules and os.environ.get(SWITCH) != "1":
        raise RuntimeError(
            "triton is already imported: call radixserve_kernels.interpret.enable() earlier, "
            f"or start the process with {SWITCH}=1"
        )
    os.environ[SWITCH] = "1"
