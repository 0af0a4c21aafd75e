"""Products of rows with fixed weights, which are packed once into panels that the C code streams.

Weights stay in the form of the checkpoint (float32, bfloat16 or GGUF's blocks) and are turned into
float32 in registers, so a result has the bits of the product with the weights as float32. Each
output is one chain of fused additions over the inputs in their order: its bits depend on its own
row of x alone. The twin is `reference.matmul`, and with `gate_up` `reference.silu_mul` after it.
"""

import torch

from radixserve_kernels.cpu.library import kernels

LAYOUT = 2  # raise it when weights are packed in another way: packed ones are kept in files
PANEL = 16  # outputs
BLOCK = 32  # inputs of a block of GGUF's
KINDS = ("F32", "BF16", "Q8_0", "Q4_0", "Q4_1")  # numbered as in src/panel.h
BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}  # in the file
PACKED_BYTES = {"F32": 4 * BLOCK, "BF16": 2 * BLOCK, **BLOCK_BYTES}  # of an output's 32 inputs
PLAIN, ADD, SILU_MUL = range(3)  # as in src/linear.c


class PackedLinear:
    """x [T, inputs] -> x @ weight.T (+ bias) [T, outputs]; made by `pack` or `pack_blocks`.

    Holds its own copy of the weights and never changes. With `gate_up` it gives silu(gate) * up of
    the two halves of its outputs, which is half as wide.
    """

    def __init__(
        self,
        panels: torch.Tensor,
        kind: str,
        inputs: int,
        outputs: int,
        bias: torch.Tensor | None,
        gate_up: bool,
    ) -> None:
        """`panels` uint8 and `bias` are laid out as `pack` makes them; they may be mapped files."""
        self.kind = kind
        self.inputs = inputs
        self.outputs = outputs  # rows of the weights, gate and up both
        self.gate_up = gate_up
        self.columns = outputs // 2 if gate_up else outputs  # of a result
        self.panels = panels
        self.bias = bias
        self._weight = (  # what every call begins with
            panels.data_ptr(),
            KINDS.index(kind),
            inputs,
            num_panels(outputs, gate_up),
            None if bias is None else bias.data_ptr(),
        )

    @classmethod
    def pack(
        cls, weight: torch.Tensor, bias: torch.Tensor | None = None, *, gate_up: bool = False
    ) -> "PackedLinear":
        """From weights [outputs, inputs], float32 or bfloat16, the last stride 1.

        Those in float32 are kept as bfloat16 where all of them are bfloat16 values: half the bytes,
        the same bits. bias [outputs] is float32. gate_up: the first half of the outputs is gate,
        the second up. Raises ValueError on what does not fit.
        """
        if weight.dim() != 2 or weight.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(
                "weight must be [outputs, inputs] of float32 or bfloat16,"
                f" is {tuple(weight.shape)} of {weight.dtype}"
            )
        if not weight.is_cpu or (weight.shape[1] > 1 and weight.stride(1) != 1):
            raise ValueError("weight must be on the CPU, its last stride 1")
        if weight.dtype is torch.float32 and _is_bf16(weight):
            weight = weight.bfloat16()
        kind = "F32" if weight.dtype is torch.float32 else "BF16"
        row_bytes = weight.stride(0) * weight.element_size()
        outputs, inputs = weight.shape
        return cls._packed(weight, kind, row_bytes, outputs, inputs, bias, gate_up)

    @classmethod
    def pack_blocks(
        cls,
        blocks: torch.Tensor,
        kind: str,
        bias: torch.Tensor | None = None,
        *,
        gate_up: bool = False,
    ) -> "PackedLinear":
        """From a GGUF tensor's blocks, uint8 [outputs, inputs / 32 * bytes of a block].

        As `gguf.ReaderTensor.data` has them, the rest as for `pack`.
        """
        if kind not in BLOCK_BYTES:
            raise ValueError(f"kind must be one of {', '.join(BLOCK_BYTES)}, is {kind}")
        size = BLOCK_BYTES[kind]
        if blocks.dim() != 2 or blocks.dtype is not torch.uint8 or blocks.shape[1] % size:
            raise ValueError(
                f"blocks of {kind} must be uint8 [outputs, blocks * {size}],"
                f" are {tuple(blocks.shape)} of {blocks.dtype}"
            )
        if not blocks.is_cpu or blocks.stride(1) != 1:
            raise ValueError("blocks must be on the CPU, their last stride 1")
        outputs, inputs = blocks.shape[0], blocks.shape[1] // size * BLOCK
        return cls._packed(blocks, kind, blocks.stride(0), outputs, inputs, bias, gate_up)

    @classmethod
    def _packed(
        cls,
        weight: torch.Tensor,
        kind: str,
        row_bytes: int,
        outputs: int,
        inputs: int,
        bias: torch.Tensor | None,
        gate_up: bool,
    ) -> "PackedLinear":
        if outputs < 1 or inputs < 1 or (gate_up and outputs % 2):
            raise ValueError(
                "there must be at least one input and output, and pairs of gate and up,"
                f" are {inputs} and {outputs}"
            )
        panels = num_panels(outputs, gate_up)
        size = panels * PANEL * PACKED_BYTES[kind] * inputs // BLOCK
        packed = torch.empty(size, dtype=torch.uint8)
        kernels().rs_pack(
            weight.data_ptr(),
            KINDS.index(kind),
            row_bytes,
            outputs,
            inputs,
            int(gate_up),
            packed.data_ptr(),
        )
        bias = None if bias is None else _in_panels(bias, outputs, gate_up)
        return cls(packed, kind, inputs, outputs, bias, gate_up)

    @property
    def nbytes(self) -> int:
        """Of the packed weights and the bias."""
        return self.panels.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(
        self,
        x: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rows x [T, inputs], float32, the last stride 1 -> [T, columns] float32.

        out: where the result goes, else a new tensor. residual: the result is added to it in place
        instead, and it is returned. Either [T, columns], float32, the last stride 1, and apart from
        x. Raises ValueError on what does not fit.
        """
        _check_rows("x", x, self.inputs)
        if residual is not None and (out is not None or self.gate_up):
            raise ValueError("a residual goes neither with out nor with gate_up")
        target = out if residual is None else residual
        if target is None:
            target = torch.empty((len(x), self.columns), dtype=torch.float32)
        else:
            _check_rows("the result", target, self.columns)
            if len(target) != len(x):
                raise ValueError(f"the result must have {len(x)} rows, has {len(target)}")
        mode = SILU_MUL if self.gate_up else PLAIN if residual is None else ADD
        kernels().rs_linear(
            *self._weight,
            mode,
            x.data_ptr(),
            x.stride(0),
            len(x),
            target.data_ptr(),
            target.stride(0),
            self.columns,
        )
        return target

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the weights as float32 [n, inputs], for indices [n] int64.

        Raises ValueError on indices out of range, and where gate and up alternate.
        """
        if self.gate_up:
            raise ValueError("rows are those of weights packed in order, these are gate and up")
        if indices.dim() != 1 or indices.dtype is not torch.int64:
            raise ValueError(
                f"indices must be [n] int64, are {tuple(indices.shape)} of {indices.dtype}"
            )
        indices = indices.contiguous()
        out = torch.empty((len(indices), self.inputs), dtype=torch.float32)
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < self.outputs:
            raise ValueError(f"indices must be from 0 to {self.outputs - 1}")
        kernels().rs_packed_rows(
            *self._weight[:3],
            indices.data_ptr(),
            len(indices),
            out.data_ptr(),
        )
        return out


def num_panels(outputs: int, gate_up: bool) -> int:
    """Panels of weights [outputs, inputs]: with gate_up, as many of either half."""
    return 2 * -(-outputs // (2 * PANEL)) if gate_up else -(-outputs // PANEL)


def _is_bf16(weight: torch.Tensor) -> bool:
    """Whether all values of a float32 tensor are bfloat16 values."""
    dense = weight.contiguous()
    return bool(kernels().rs_are_bf16(dense.data_ptr(), dense.numel()))


def _in_panels(bias: torch.Tensor, outputs: int, gate_up: bool) -> torch.Tensor:
    """A value for each lane of each panel, those without an output 0."""
    if bias.shape != (outputs,) or bias.dtype is not torch.float32:
        raise ValueError(
            f"bias must be [{outputs}] float32, is {tuple(bias.shape)} of {bias.dtype}"
        )
    parts = bias.view(2, -1) if gate_up else bias.view(1, -1)
    padded = torch.zeros(len(parts), num_panels(outputs, gate_up) // len(parts), PANEL)
    padded.flatten(1)[:, : parts.shape[1]] = parts
    return padded.transpose(0, 1).contiguous()


def _check_rows(name: str, x: torch.Tensor, size: int) -> None:
    if x.dim() != 2 or x.shape[1] != size or x.dtype is not torch.float32:
        raise ValueError(f"{name} must be [T, {size}] float32, is {tuple(x.shape)} of {x.dtype}")
    if not x.is_cpu or (size > 1 and x.stride(1) != 1):
        raise ValueError(f"{name} must be on the CPU, its last stride 1")
