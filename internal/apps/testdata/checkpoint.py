"""Checkpoints as machine learning frameworks write and read them."""

import io
import json
import mmap
import os
import pickle
import random
import struct
import sys
import zipfile

rng = random.Random(7)
tensors = {f"layer.{i}.weight": rng.randbytes(n) for i, n in enumerate([64, 4096, 100_000, 1_000_000, 9_000_000])}


def torch_save(path):
    """PyTorch's container: a stored zip, whose writer seeks back to fill in
    sizes, with data aligned to 64 bytes by padding in the extra field."""
    with open(path, "wb") as f, zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
        index = io.BytesIO()
        pickle.dump({k: len(v) for k, v in tensors.items()}, index)
        for name, data in [("data.pkl", index.getvalue()), ("version", b"3\n"), *((f"data/{k}", v) for k, v in tensors.items())]:
            info = zipfile.ZipInfo("archive/" + name)
            pad = -(f.tell() + 30 + len(info.filename) + 4) % 64
            info.extra = struct.pack("<HH", 0x4246, pad) + b"Z" * pad
            with z.open(info, "w") as w:
                for at in range(0, len(data), 70_000):
                    w.write(data[at : at + 70_000])


def torch_load(path):
    with zipfile.ZipFile(path) as z:
        assert z.testzip() is None
        sizes = pickle.loads(z.read("archive/data.pkl"))
        for name, data in tensors.items():
            assert sizes[name] == len(data)
            assert z.read("archive/data/" + name) == data, name


def safetensors_save(path):
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for data in tensors.values():
            f.write(data)


def safetensors_load(path):
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        n = struct.unpack_from("<Q", m)[0]
        header = json.loads(m[8 : 8 + n])
        for name, data in tensors.items():
            a, b = header[name]["data_offsets"]
            assert m[8 + n + a : 8 + n + b] == data, name


def mmap_save(path):
    """Preallocated, then filled through a shared mapping in any order."""
    size = sum(map(len, tensors.values()))
    with open(path, "w+b") as f:
        f.truncate(size)
        with mmap.mmap(f.fileno(), size) as m:
            at = size
            for data in reversed(tensors.values()):
                at -= len(data)
                m[at : at + len(data)] = data
            m.flush()


def mmap_load(path):
    with open(path, "rb") as f:
        assert f.read() == b"".join(tensors.values())


for save, load, path in [
    (torch_save, torch_load, "model.pt"),
    (safetensors_save, safetensors_load, "model.safetensors"),
    (mmap_save, mmap_load, "model.bin"),
]:
    # The first time, over it, and by the rename that makes it atomic.
    save(path)
    load(path)
    tensors["layer.2.weight"] = rng.randbytes(100_000)
    save(path)
    load(path)
    save(path + ".tmp")
    os.replace(path + ".tmp", path)
    load(path)
