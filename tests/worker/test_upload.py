"""Arrays that travel as one piece."""

import numpy as np
import torch

from radixserve.worker.upload import upload


def test_arrays_come_back_as_views_of_one_piece():
    arrays = {
        "a": np.array([3, -1, 2**31 - 1]),
        "none": np.empty(0, dtype=np.int64),
        "table": np.arange(6, dtype=np.int32).reshape(2, 3),
        "flags": np.array([True, False]),
    }
    got = upload(arrays, torch.device("cpu"))
    assert list(got) == list(arrays)
    for name, array in arrays.items():
        assert got[name].dtype == torch.int32
        assert got[name].shape == array.shape
        assert got[name].tolist() == array.astype(np.int32).tolist()
    assert len({t.untyped_storage().data_ptr() for t in got.values()}) == 1
    first = got["a"].data_ptr()
    assert all((t.data_ptr() - first) % 16 == 0 for t in got.values() if t.numel())
    got["a"].fill_(7)
    assert got["table"].tolist() == [[0, 1, 2], [3, 4, 5]], "nothing overlaps"
