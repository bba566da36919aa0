"""Model files: what is read, what is refused, and that no file brings the process down."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from bits import assert_same_bits, cold
from doctored import FIRST_KEY_LENGTH_AT, KEY_COUNT_AT, TENSOR_COUNT_AT, VERSION_AT, Doctor
from models import write_model
from opening import assert_refused, open_all
from specrs._specrs import GgufError, GgufFile, Model

TOKENS = list(range(4, 100, 3))
HUGE = {"2^31": 2**31, "2^40": 2**40, "2^63": 2**63, "2^64-1": 2**64 - 1}


@pytest.fixture
def doctor(tiny: Callable[..., Path], tmp_path: Path) -> Doctor:
    return Doctor(tiny(quant="Q4_0"), tmp_path)


def same(got: Path, wanted: Path) -> None:
    """Assert that two files give logits with the same bits."""
    assert_same_bits(cold(Model(got), TOKENS), cold(Model(wanted), TOKENS))


def test_header_is_what_the_gguf_package_reads(tiny: Callable[..., Path]) -> None:
    path = tiny(quant="Q4_K", types={"output.weight": "Q6_K"}, n_layer=1)
    file, reader = GgufFile(path), gguf.GGUFReader(path)
    assert file.version == 3
    assert file.size == path.stat().st_size
    wanted = {
        key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")
    }
    assert file.metadata == wanted
    assert Model(path).metadata == wanted
    assert file.tensors == [
        (t.name, t.tensor_type.name, tuple(int(n) for n in reversed(t.shape)), int(t.n_bytes))
        for t in reader.tensors
    ]


def test_version_2(doctor: Doctor, tiny: Callable[..., Path]) -> None:
    path = doctor.patch("version 2", (VERSION_AT, "I", 2))
    assert GgufFile(path).version == 2
    same(path, tiny(quant="Q4_0"))


def test_the_path_may_be_text_or_path(tiny: Callable[..., Path]) -> None:
    assert Model(str(tiny())).n_vocab == Model(tiny()).n_vocab == 312


@pytest.mark.parametrize("alignment", [8, 32, 64, 128])
def test_alignment(tiny: Callable[..., Path], tmp_path: Path, alignment: int) -> None:
    source = gguf.GGUFReader(tiny())
    writer = gguf.GGUFWriter(tmp_path / "aligned.gguf", "llama")
    writer.add_custom_alignment(alignment)
    for key, field in source.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    same(tmp_path / "aligned.gguf", tiny())


def test_tied_output_is_the_embedding(tiny: Callable[..., Path]) -> None:
    for quant in ("F32", "Q8_0"):
        same(tiny(quant=quant, tied=True), tiny(quant=quant, copied=True))


def test_frequency_factors_of_one_change_nothing(tiny: Callable[..., Path]) -> None:
    same(tiny(rope_divisors=(1.0,) * 8), tiny())


def test_unknown_tensors_and_keys_are_ignored(tiny: Callable[..., Path]) -> None:
    same(tiny(extra_tensors=("foo.weight",), metadata={"foo.bar": "x", "foo.n": 7}), tiny())


def test_split_files(tiny: Callable[..., Path], tmp_path: Path) -> None:
    first = write_model(tmp_path / "split.gguf", quant="Q4_0", split=7)
    parts = sorted(tmp_path.iterdir())
    assert len(parts) > 2
    assert first == parts[0]
    same(first, tiny(quant="Q4_0"))
    file, whole = GgufFile(first), GgufFile(tiny(quant="Q4_0"))
    assert file.size == sum(part.stat().st_size for part in parts)
    assert sorted(file.tensors) == sorted(whole.tensors)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = write_model(tmp_path / "split.gguf", split=7)
    parts = sorted(tmp_path.iterdir())
    parts[1].unlink()
    with pytest.raises(OSError, match=parts[1].name):
        Model(first)


def test_any_part_opens_the_whole_but_its_name_counts(tmp_path: Path) -> None:
    first = write_model(tmp_path / "split.gguf", split=7)
    later = sorted(tmp_path.iterdir())[1]
    same(later, first)
    renamed = later.rename(tmp_path / "renamed.gguf")
    with pytest.raises(GgufError, match="part"):
        Model(renamed)


def test_a_part_of_another_model_is_refused(tmp_path: Path) -> None:
    first = write_model(tmp_path / "split.gguf", split=7)
    parts = sorted(tmp_path.iterdir())
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(GgufError, match=parts[1].name):
        Model(first)


@pytest.mark.parametrize("name", ["none.gguf", "folder"])
def test_a_file_that_cannot_be_read_is_an_os_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    for opening in (Model, GgufFile):
        with pytest.raises(OSError, match=name):
            opening(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Model(tmp_path / "none.gguf")


def test_what_is_no_gguf_file_is_refused(doctor: Doctor) -> None:
    good = doctor.data
    doctor.write("empty", b"")
    doctor.write("one byte", b"G")
    doctor.write("magic alone", b"GGUF")
    doctor.write("text", b"hello world, this is no model at all" * 10)
    doctor.write("zeros", bytes(1000))
    doctor.write("other magic", b"GGML" + good[4:])
    doctor.write("big-endian", b"GGUF" + struct.pack(">I", 3) + good[8:])
    for version in (0, 1, 4, 2**32 - 1):
        doctor.patch(f"version {version}", (VERSION_AT, "I", version))
    assert_refused(doctor.files, {"version 1": "version", "version 4": "4"})


def test_a_truncated_file_is_refused(doctor: Doctor) -> None:
    whole = doctor.data
    for percent in range(5, 100, 5):
        doctor.write(f"{percent} %", whole[: len(whole) * percent // 100])
    doctor.write("one byte short", whole[:-1])
    header = doctor.layout.header_end
    for length in (8, 16, 24, 30, header // 3, header // 2, header - 1, header):
        doctor.write(f"{length} bytes", whole[:length])
    assert_refused(doctor.files, {"one byte short": ".weight"})


def test_absurd_counts_and_lengths_allocate_nothing(doctor: Doctor) -> None:
    tokens_at = doctor.layout.values["tokenizer.ggml.tokens"]
    for name, value in HUGE.items():
        doctor.patch(f"tensor count {name}", (TENSOR_COUNT_AT, "Q", value))
        doctor.patch(f"key count {name}", (KEY_COUNT_AT, "Q", value))
        doctor.patch(f"key length {name}", (FIRST_KEY_LENGTH_AT, "Q", value))
        doctor.patch(f"array count {name}", (tokens_at + 4, "Q", value))
        doctor.patch(f"length of an array's string {name}", (tokens_at + 12, "Q", value))
        tiny_header = b"GGUF" + struct.pack("<I", 3)
        doctor.write(
            f"36 bytes, string {name}", tiny_header + struct.pack("<QQQ", 0, 1, value) + b"abcd"
        )
        doctor.write(f"24 bytes, tensors {name}", tiny_header + struct.pack("<QQ", value, 0))
        doctor.write(f"24 bytes, keys {name}", tiny_header + struct.pack("<QQ", 0, value))
    assert_refused(doctor.files)


def test_arrays_nested_without_end_are_refused(doctor: Doctor) -> None:
    key = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9)
    nested = key + struct.pack("<IQ", 9, 1) * 100_000
    doctor.write("nested", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + nested)
    assert_refused(doctor.files)


def test_value_types_that_do_not_exist_are_refused(doctor: Doctor) -> None:
    at = doctor.layout.values
    doctor.patch("value", (at["llama.block_count"] - 4, "I", 13))
    doctor.patch("element", (at["tokenizer.ggml.tokens"], "I", 99))
    doctor.patch("text for a number", (at["llama.block_count"] - 4, "I", 8))
    assert_refused(doctor.files)


def test_lies_about_tensors_are_refused(doctor: Doctor) -> None:
    name = "blk.1.ffn_up.weight"
    tensor, first = doctor.layout.tensors[name], doctor.layout.tensors["blk.0.attn_q.weight"]
    (offset,) = struct.unpack_from("<Q", doctor.data, tensor.offset_at)
    dims = tensor.dims_at
    doctor.patch("product wraps to 0", (dims, "Q", 2**63))
    doctor.patch("product wraps to little", (dims, "Q", 2**42 + 32))
    doctor.patch("both huge", (dims, "Q", 2**33), (dims + 8, "Q", 2**33))
    doctor.patch("no columns", (dims, "Q", 0))
    doctor.patch("no rows", (dims + 8, "Q", 0))
    doctor.patch("row of part of a block", (dims, "Q", 33))
    doctor.patch("rank 0", (tensor.rank_at, "I", 0))
    doctor.patch("rank 2^31", (tensor.rank_at, "I", 2**31))
    doctor.patch("offset not aligned", (tensor.offset_at, "Q", offset + 1))
    doctor.patch("offset past the end", (tensor.offset_at, "Q", 2**30))
    doctor.patch("offset near 2^64", (tensor.offset_at, "Q", 2**64 - 32))
    doctor.patch("overlapping", (first.offset_at, "Q", offset))
    doctor.patch("type 99", (tensor.type_at, "I", 99))
    doctor.patch("another shape", (dims + 8, "Q", 32))
    doctor.patch("missing", (tensor.name_at, "19s", b"blk.1.ffn_UP.weight"))
    doctor.patch("twice", (tensor.name_at, "19s", b"blk.0.ffn_up.weight"))
    named = ("product wraps to 0", "row of part of a block", "type 99", "another shape", "missing")
    assert_refused(doctor.files, dict.fromkeys((*named, "offset past the end"), name))


@pytest.mark.parametrize("number", [4, 16, 99])
def test_an_unknown_type_is_named_with_those_that_work(doctor: Doctor, number: int) -> None:
    name = "blk.0.attn_k.weight"
    path = doctor.patch("type", (doctor.layout.tensors[name].type_at, "I", number))
    with pytest.raises(GgufError) as raised:
        Model(path)
    message = str(raised.value)
    assert name in message
    assert str(number) in message or "IQ2_XXS" in message
    for supported in ("F32", "BF16", "Q4_0", "Q6_K"):
        assert supported in message


def test_bad_alignment_is_refused(doctor: Doctor, tiny: Callable[..., Path]) -> None:
    for alignment in (0, 3, 33, 2**30, 2**32 - 1, "32"):
        doctor.files[str(alignment)] = tiny(metadata={"general.alignment": alignment})
    assert_refused(doctor.files, {"0": "general.alignment", "3": "general.alignment"})


CONFIG_LIES: dict[str, dict[str, Any]] = {
    "llama.attention.head_count": {"zero": 0, "not dividing": 3, "2^31": 2**31, "text": "4"},
    "llama.attention.head_count_kv": {"zero": 0, "not dividing": 3, "more than heads": 8},
    "llama.block_count": {"zero": 0, "more than there are": 3, "2^32-1": 2**32 - 1, "float": 2.0},
    "llama.embedding_length": {"zero": 0, "other": 128, "2^32-1": 2**32 - 1},
    "llama.feed_forward_length": {"other": 128},
    "llama.context_length": {"zero": 0},
    "llama.attention.key_length": {"odd": 15, "other": 32},
    "llama.rope.freq_base": {"negative": -1.0, "nan": float("nan"), "text": "1e4"},
    "llama.attention.layer_norm_rms_epsilon": {"negative": -1.0, "nan": float("nan")},
}


@pytest.mark.parametrize("key", CONFIG_LIES)
def test_impossible_settings_are_refused(tiny: Callable[..., Path], key: str) -> None:
    files = {case: tiny(metadata={key: value}) for case, value in CONFIG_LIES[key].items()}
    assert_refused(files, {"zero": key, "text": key, "nan": key, "negative": key})


def test_other_kinds_of_model_are_refused_by_name(tiny: Callable[..., Path]) -> None:
    files = {
        "architecture": tiny(architecture="deepseek2"),
        "experts": tiny(metadata={"llama.expert_count": 8}),
        "rope": tiny(metadata={"llama.rope.scaling.type": "spiral"}),
    }
    mentions = {"architecture": "deepseek2", "experts": "expert", "rope": "spiral"}
    assert_refused(files, mentions)
    with pytest.raises(GgufError, match="llama"):  # what does work
        Model(files["architecture"])


def test_a_model_outlives_its_file(tiny: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "deleted.gguf"
    path.write_bytes(tiny(quant="Q4_0").read_bytes())
    model = Model(path)
    wanted = cold(model, TOKENS)
    path.unlink()
    assert_same_bits(cold(model, TOKENS), wanted)


def test_arguments_of_a_model(tiny: Callable[..., Path]) -> None:
    path = tiny()
    model = Model(path, n_ctx=100, threads=1)
    assert (model.n_ctx, model.threads, model.device, model.n_vocab) == (100, 1, "cpu", 312)
    assert model.kernels
    assert model.weight_bytes > 0
    assert model.cache_bytes_per_token > 0
    assert Model(path).n_ctx == 512
    bad: list[dict[str, Any]] = [{"n_ctx": 0}, {"n_ctx": -1}, {"threads": 0}, {"threads": -1}]
    for options in (*bad, {"threads": 10**9}, {"device": "tpu"}):
        with pytest.raises(ValueError, match=r"\S"):
            Model(path, **options)
    with pytest.raises(ValueError, match="candle-cpu"):
        Model(path, device="tpu")
    for options in ({"n_ctx": "8"}, {"n_ctx": 8.5}, {"device": 3}, {"gpu_layers": 3}):
        with pytest.raises(TypeError):
            Model(path, **options)
    with pytest.raises(TypeError):
        Model(3)  # type: ignore[arg-type]


def test_valid_files_pass_the_same_door(tiny: Callable[..., Path]) -> None:
    """The child process of these tests does open what is good: a refusal there means something."""
    outcomes = open_all([tiny(), tiny(quant="Q4_0"), tiny(quant="Q4_K")])
    assert [outcome.error for outcome in outcomes.values()] == [None] * 3
