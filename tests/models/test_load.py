"""Loading: what does not fit is named; the fingerprint follows the weights, not the folder."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixserve.models.dummy import fill_dummy
from radixserve.models.load import INDEX, fingerprint, load
from tests.checkpoints import tiny_checkpoint

WEIGHTS = "model.safetensors"
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "copy")


def load_float32(folder, context_length=0, **changes):
    given = {"device": "cpu", "dtype": torch.float32, "context_length": context_length}
    return load(folder, **(given | changes))


def change(folder, edit):
    """Apply `edit` to the dict of the folder's tensors, in place, and save them again."""
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def test_missing_tensor_is_named(folder):
    change(folder, lambda tensors: tensors.pop(DOWN))
    with pytest.raises(ValueError, match=f"has no tensor {DOWN}"):
        load_float32(folder)


def test_unexpected_tensor_is_named(folder):
    change(folder, lambda tensors: tensors.update({"model.adapter": torch.zeros(1)}))
    with pytest.raises(ValueError, match=r"does not know: model\.adapter"):
        load_float32(folder)


def test_tensor_of_another_shape_is_named(folder):
    change(folder, lambda tensors: tensors.update({DOWN: torch.zeros(64, 161)}))
    with pytest.raises(ValueError, match=rf"{DOWN} has shape \[64, 161\].*\[64, 160\]"):
        load_float32(folder)


def test_shape_is_not_broadcast(folder):
    change(folder, lambda tensors: tensors.update({DOWN: torch.zeros(64, 1)}))
    with pytest.raises(ValueError, match=DOWN):
        load_float32(folder)


def test_long_lists_of_names_are_cut(folder):
    change(folder, lambda tensors: tensors.clear())
    with pytest.raises(ValueError, match=r"and \d+ more"):
        load_float32(folder)


def test_frequencies_of_old_checkpoints_are_ignored(folder):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change(folder, lambda tensors: tensors.update({name: torch.zeros(8)}))
    assert load_float32(folder).spec.num_layers == 2


def test_sharded_checkpoint_has_the_same_weights(original, folder):
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (folder / WEIGHTS).unlink()
    one, many = load_float32(original), load_float32(folder)
    for mine, other in zip(one.parameters(), many.parameters(), strict=True):
        assert mine.equal(other)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no b\.safetensors"):
        load_float32(folder)


def test_context_length(folder):
    assert load_float32(folder).context_length == 512
    assert load_float32(folder, 100).context_length == 100
    with pytest.raises(ValueError, match="513 is more than the model allows"):
        load_float32(folder, 513)


def test_fingerprint_is_the_same_for_a_copy(original, folder):
    change(folder, lambda tensors: None)
    assert fingerprint(original) == fingerprint(folder)
    assert len(fingerprint(folder)) == 16


@pytest.mark.parametrize("name", [DOWN, "model.norm.weight", "lm_head.weight"])
def test_fingerprint_follows_the_weights(original, folder, name):
    change(folder, lambda tensors: tensors[name].mul_(1.001))
    assert fingerprint(original) != fingerprint(folder)


def test_fingerprint_follows_the_config(original, folder):
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert fingerprint(original) != fingerprint(folder)


def test_dummy_weights_need_only_a_config(original, tmp_path):
    shutil.copy(original / "config.json", tmp_path)
    made, again = (load_float32(tmp_path, load_format="dummy") for _ in range(2))
    for mine, other in zip(made.parameters(), again.parameters(), strict=True):
        assert mine.equal(other)
    assert made.norm.eq(1.0).all()
    spread = made.embedding.std().item()
    assert spread == pytest.approx(0.02, rel=0.05)
    with pytest.raises(ValueError, match="has no model"):
        load_float32(tmp_path)


def test_dummy_weights_differ_from_tensor_to_tensor():
    a, b, norm = (torch.empty(64, 64) for _ in range(3))
    fill_dummy({"a.weight": [a], "b.weight": [b], "model.norm.weight": list(norm)})
    assert not a.equal(b)
    assert all(abs(x.mean()) < 0.002 and 0.018 < x.std() < 0.022 for x in (a, b))
    assert norm.eq(1.0).all()


@pytest.mark.parametrize("arch", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_dummy_weights_of_any_architecture_give_finite_logits(tmp_path, arch):
    tiny_checkpoint(tmp_path, arch)
    decoder = load_float32(tmp_path, load_format="dummy")
    every = torch.arange(9)

    def attend(layer, qk, v, turn):
        return qk[:, : -v.shape[1]]

    logits = decoder(every, every, attend, every)
    assert logits.isfinite().all() and logits.std() > 0


def test_fingerprint_says_that_weights_are_dummies(original, tmp_path):
    shutil.copy(original / "config.json", tmp_path)
    name = fingerprint(tmp_path, "dummy")
    assert name == fingerprint(original, "dummy") != fingerprint(original)
    assert name.startswith("dummy") and len(name) == 16
    config = json.loads((tmp_path / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert fingerprint(tmp_path, "dummy") != name
