"""Arrays that become tensors of the device: copies, and for fixed inputs one piece of memory."""

import numpy as np
import torch

from radixserve.worker.upload import FixedInputs, upload

ARRAYS = {
    "a": np.array([3, -1, 2**31 - 1]),
    "none": np.empty(0, dtype=np.int64),
    "table": np.arange(6, dtype=np.int32).reshape(2, 3),
    "flags": np.array([True, False]),
}
CPU = torch.device("cpu")


def check(got: dict[str, torch.Tensor]) -> None:
    assert list(got) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert got[name].dtype == torch.int32
        assert got[name].shape == array.shape
        assert got[name].tolist() == array.astype(np.int32).tolist()
    got["a"].fill_(7)
    assert got["table"].tolist() == [[0, 1, 2], [3, 4, 5]], "nothing overlaps"


def test_arrays_are_copied():
    got = upload(ARRAYS, CPU)
    got["table"][0, 0] = 9
    assert ARRAYS["table"][0, 0] == 0
    got["table"][0, 0] = 0
    check(got)


def test_fixed_inputs_are_views_of_one_piece():
    inputs = FixedInputs({name: array.shape for name, array in ARRAYS.items()}, CPU)
    inputs.fill(ARRAYS)
    got = inputs.tensors
    assert len({t.untyped_storage().data_ptr() for t in got.values()}) == 1
    first = got["a"].data_ptr()
    assert all((t.data_ptr() - first) % 16 == 0 for t in got.values() if t.numel())
    check(got)
