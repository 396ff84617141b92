#!/usr/bin/env python3
"""t-format.py - compare zse-info with a second reader of .zse files, written from FORMAT.md alone.

Compared: header, sections, checksums, and rows of every number format."""
import json
import os
import struct
import sys
import tempfile
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, ROOT, Tap, floats, run

NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
       -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
       0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def e4m3(c):
    size = (c & 7) * 2.0 ** -9 if (c & 127) < 8 else (8 + (c & 7)) * 2.0 ** ((c >> 3 & 15) - 10)
    return -size if c > 127 else size


# Section 4 of FORMAT.md, for each type: (bits of each plane of codes, struct letter of the group
# scale, whether a row has a scale, struct letter of the extra number, function from code to value)
TYPES = {
    "i8": ([8], "e", False, None, lambda c: c - 256 if c > 127 else c),
    "i8r": ([8], None, True, None, lambda c: c - 256 if c > 127 else c),
    "i4": ([4], "e", False, None, lambda c: c - 8),
    "i4m": ([4], "e", False, "e", None),
    "i4z": ([4], "e", False, "B", None),
    "nl4": ([4], "b", True, None, [-127, -97, -76, -59, -45, -31, -19, -8, 2, 12, 23, 34, 47, 62, 81, 111].__getitem__),
    "nf4": ([4], "B", True, None, [f32(v * 127) for v in NF4].__getitem__),
    "m2": ([2], "b", True, None, [-127, -44, 18, 89].__getitem__),
    "m3": ([2, 1], "b", True, None, [-127, -77, -45, -18, 7, 33, 64, 105].__getitem__),
    "m5": ([4, 1], "b", True, None, lambda c: c - 16),
    "m6": ([4, 2], "b", True, None, lambda c: c - 32),
    "fp8": ([8], "f", False, None, e4m3),
    "mxfp8": ([8], "B", False, None, e4m3),
}


def pad64(n):
    return (n + 63) // 64 * 64


def line_code(b, at, row, bits, k):
    """The code of column k, which has this number of bits, in the lines of codes that begin at
    `at`."""
    per = 32 // bits
    dword = at + k // per * 128 + 4 * row
    i, j = k % per // 4, k % 4
    return b[dword + j] >> bits * i & (1 << bits) - 1


def float_row(b, t, at, row):
    size, letter = (4, "f") if t["type"] == "f32" else (2, "e" if t["type"] == "f16" else "H")
    out = []
    for k in range(t["shape"][1]):
        per = 4 // size
        v = struct.unpack_from("<" + letter, b, at + k // per * 128 + 4 * row + k % per * size)[0]
        out.append(struct.unpack("<f", struct.pack("<I", v << 16))[0] if letter == "H" else v)
    return out


def read_row(b, t, row):
    """Read one row of a tiled tensor (section 5 of FORMAT.md)."""
    rows, cols = t["shape"]
    group = t.get("group_size", 32)
    padding = max(group, t.get("act_group", 0))
    n_groups = (cols + padding - 1) // padding * padding // group
    r = row % 32
    if t["type"] in ("f32", "f16", "bf16"):
        tile = n_groups * group * (4 if t["type"] == "f32" else 2) // 4 * 128
        return float_row(b, t, t["offset"] + row // 32 * tile, r), tile * ((rows + 31) // 32)
    planes, scale, row_scale, extra, value = TYPES[t["type"]]
    full = {None: 1, "f": 1, "e": 2}.get(scale, 4)
    size = struct.calcsize(scale) if scale else 0
    extra_size = struct.calcsize(extra) if extra else 0
    codes = group * sum(planes) // 32 * 128
    units = [min(full, n_groups - g) for g in range(0, n_groups, full)]
    unit_bytes = [pad64(n * 32 * size) + pad64(n * 32 * extra_size) + n * codes for n in units]
    tile = 128 * row_scale + sum(unit_bytes)
    at = t["offset"] + row // 32 * tile
    big_r = struct.unpack_from("<f", b, at + 4 * r)[0] if row_scale else 1.0
    at += 128 * row_scale
    out = []
    for n, unit in zip(units, unit_bytes):
        for g in range(n):
            element = (r // 4 * n + g) * 4 + r % 4
            s = struct.unpack_from("<" + scale, b, at + element * size)[0] if scale else 1
            x = struct.unpack_from("<" + extra, b, at + pad64(n * 32 * size) + element * extra_size)[0] if extra else 0
            s = f32(big_r * s) if row_scale else 2.0 ** (s - 127) if t["type"] == "mxfp8" else s
            code_at = at + pad64(n * 32 * size) + pad64(n * 32 * extra_size) + g * codes
            for k in range(group):
                code, shift, plane_at = 0, 0, code_at
                for bits in planes:
                    code |= line_code(b, plane_at, r, bits, k) << shift
                    shift += bits
                    plane_at += group * bits // 32 * 128
                if extra == "e":
                    out.append(f32(f32(s * code) + x))
                elif extra == "B":
                    out.append(f32(s * (code - x)))
                else:
                    out.append(f32(s * value(code)))
        at += unit
    return out[:cols], tile * ((rows + 31) // 32)


NUMBERS = {0: "f32", 1: "f16", 2: "bf16", 8: "i8", 9: "i8r", 16: "i4", 17: "i4m", 18: "i4z", 20: "nl4", 21: "nf4", 32: "m2", 33: "m3", 35: "m5", 36: "m6",
           48: "f8e4m3", 49: "f8e5m2", 50: "mxfp4", 51: "fp8", 53: "mxfp8", 64: "t2", 65: "t3"}


def read_tensors(b, at, length):
    """Read the records of TNSR (section 3 of FORMAT.md)."""
    n, m, s, zero = struct.unpack_from("<IIII", b, at)
    assert zero == 0 and length == 16 + 64 * n + 48 * m + s
    strings = at + 16 + 64 * n + 48 * m
    def text(i):
        return b[strings + i:b.index(0, strings + i)].decode()
    out = []
    for i in range(n):
        (offset, size, name, _, _, kind, n_dims, flags, rows, cols, group, group_size, act_group,
         _, _, _, _) = struct.unpack_from("<QQIIIHBBIIIHHIIII", b, at + 16 + 64 * i)
        out.append({"name": text(name), "type": NUMBERS[kind], "shape": [rows, cols][:n_dims], "offset": offset, "size": size, "group": group,
                    "tiled": bool(flags & 1), "group_size": group_size, "act_group": act_group})
    return out


def read_file(path):
    """Read a file (sections 1 to 3 of FORMAT.md): bytes, JSON and tensors; every checksum is
    compared."""
    with open(path, "rb") as f:
        b = f.read()
    magic, major, _, _, zero, size, table, n, table_crc = struct.unpack_from("<4sBBBBQQII", b, 0)
    assert magic == b"ZSE\0" and major == 1 and zero == 0 and size == len(b)
    assert struct.unpack_from("<I", b, 60)[0] == zlib.crc32(b[:60])
    assert table_crc == zlib.crc32(b[table:table + 32 * n])
    sections = {}
    for i in range(n):
        kind, flags, offset, length, crc, _ = struct.unpack_from("<4sIQQII", b, table + 32 * i)
        sections[kind] = (offset, length)
        assert offset % 64 == 0
        assert crc == (0 if flags & 2 else zlib.crc32(b[offset:offset + length]))
    at, length = sections[b"JSON"]
    j = json.loads(b[at:at + length])
    for g in j["groups"]:
        assert g["offset"] % 4096 == 0 and zlib.crc32(b[g["offset"]:g["offset"] + g["size"]]) == g["crc"]
    j["tensors"] = read_tensors(b, *sections[b"TNSR"])
    originals = sections[b"ORIG"][0] if b"ORIG" in sections else 0
    for o in j["originals"]:
        text = zlib.decompress(b[originals + o["at"]:originals + o["at"] + o["packed"]])
        assert len(text) == o["size"] and zlib.crc32(text) == o["crc"]
    return b, j


def check(name, source, *options):
    """Compare rows 0, 5 and the last one of the first two tensors of each type in the file."""
    with tempfile.TemporaryDirectory() as temp:
        path, dump = os.path.join(temp, "m.zse"), os.path.join(temp, "t")
        run("zse-convert", source, "-o", path, *options)
        b, j = read_file(path)
        seen, bad = {}, []
        for t in j["tensors"]:
            if not t.get("tiled") or seen.get(t["type"], 0) == 2:
                continue
            seen[t["type"]] = seen.get(t["type"], 0) + 1
            run("zse-info", "--dump-tensor", t["name"], "-o", dump, path)
            want, cols = floats(dump), t["shape"][1]
            for row in (0, 5, t["shape"][0] - 1):
                got, size = read_row(b, t, row)
                if size != t["size"] or got != list(want[row * cols:(row + 1) * cols]):
                    bad.append(f"{t['name']} ({t['type']}) row {row} differs")
        Tap.ok(not bad and seen, f"{name}: {', '.join(sorted(seen))}", *bad)


tiny = os.path.join(ROOT, "models", "tiny")
for kind in ("nl4", "nf4", "fp8", "mxfp8", "f32", "f16", "bf16"):
    check(kind, tiny, "-q", kind, "--quality", "fast")
for size in (32, 64, 128):
    check(f"int4, group {size}", tiny, "-q", "int4", "-g", size, "--quality", "fast")
    check(f"int8, group {size}", tiny, "-q", "int8", "-g", size, "--quality", "fast")
check("int8, a scale a row", tiny, "-q", "int8", "-g", "row", "--quality", "fast")
for budget in (350000, 450000, 650000):
    check(f"mixed, {budget} bytes", tiny, "-q", "mixed", "-m", budget, "--quality", "fast")
odd = os.path.join(ORACLES, "models", "hf", "llama-odd")
if os.path.isdir(odd):
    check("odd shapes", odd, "-q", "nl4", "--quality", "fast")
    check("Q4_1 kept", os.path.join(ORACLES, "models", "gguf", "Q4_1.gguf"), "-q", "keep")
else:
    Tap.skip("odd shapes, Q4_1 kept", f"no oracles at {ORACLES}")
Tap.done()
