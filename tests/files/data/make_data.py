"""Makes the files beside it: small pictures with what Pillow decodes and resizes them to, a
safetensors file written by the format's own library, and IDX and TOML samples.

Needs pillow below 13 (13 resizes some pictures vertically first), numpy and safetensors. The files
are kept in the repository, so that the tests need none of it.
"""

import gzip
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent


def scene(height, width, channels):
    """A picture with slopes, edges and noise, so that every filter tap matters."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:height, 0:width]
    planes = [
        127 + 90 * np.sin(x / (2.0 + c) + c) * np.cos(y / 3.0) + 60 * ((x + y + c) % 7 == 0)
        for c in range(channels)
    ]
    noise = rng.integers(-30, 31, (height, width, channels))
    pixels = np.clip(np.stack(planes, -1) + noise, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels)


def raw_png(path, width, height, depth, color, rows, chunks=()):
    """A PNG that Pillow cannot write: rows are the packed samples of one line each."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    data = b"\x89PNG\r\n\x1a\n"
    data += chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    for kind, body in chunks:
        data += chunk(kind, body)
    data += chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    path.write_bytes(data + chunk(b"IEND", b""))


def png_files():
    gray, rgb = scene(13, 17, 1), scene(13, 17, 3)
    gray.save(HERE / "gray8.png")
    rgb.save(HERE / "rgb8.png")
    rgb.convert("L").save(HERE / "rgb8_as_gray.png")
    palette = rgb.quantize(16)
    palette.save(HERE / "palette.png")
    palette.convert("RGB").save(HERE / "palette_as_rgb.png")
    gray.convert("1").save(HERE / "gray1.png")
    gray.convert("1").convert("L").save(HERE / "gray1_as_gray.png")
    # Alpha over black, by Pillow's own compositing.
    alpha = Image.fromarray(np.asarray(scene(13, 17, 1))[::-1].copy())
    for name, picture, mode in (("rgba", rgb, "RGB"), ("gray_alpha", gray, "L")):
        clear = picture.copy()
        clear.putalpha(alpha)
        clear.save(HERE / f"{name}.png")
        opacity = np.asarray(alpha, dtype=np.int64).reshape(13, 17, *([1] if mode == "RGB" else []))
        black = (np.asarray(picture, dtype=np.int64) * opacity + 127) // 255
        Image.fromarray(black.astype(np.uint8)).save(HERE / f"{name}_as_{mode.lower()}.png")
    # 16 bits, 4 bits, and a transparent colour.
    wide = np.arange(5 * 3 * 3, dtype=np.uint16).reshape(3, 5, 3) * 1456
    rows = [row.astype(">u2").tobytes() for row in wide]
    raw_png(HERE / "rgb16.png", 5, 3, 16, 2, rows)
    Image.fromarray((wide >> 8).astype(np.uint8)).save(HERE / "rgb16_as_rgb.png")
    raw_png(HERE / "gray4.png", 4, 2, 4, 0, [bytes([0x01, 0x2F]), bytes([0xA5, 0x70])])
    raw_png(HERE / "gray8_transparent.png", 3, 1, 8, 0, [bytes([10, 20, 30])], [(b"tRNS", b"\0\x14")])
    # A chunk that promises 1.9 GB in a file of a few bytes.
    start = (HERE / "gray4.png").read_bytes()[:33]
    (HERE / "huge_chunk.png").write_bytes(start + b"qqqqzTXtqqqq")
    # Interlaced (Adam7): the sub-images of 8 x 8 pixels, packed by hand.
    small = np.asarray(scene(8, 8, 1))
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    lines = [line.tobytes() for x, y, dx, dy in passes for line in small[y::dy, x::dx]]
    raw_png(HERE / "interlaced.png", 8, 8, 8, 0, lines)
    data = bytearray((HERE / "interlaced.png").read_bytes())
    data[28] = 1  # the header's interlace flag, then its checksum
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    (HERE / "interlaced.png").write_bytes(bytes(data))
    Image.fromarray(small).save(HERE / "interlaced_as_gray.png")


def jpeg_files():
    gray, rgb = scene(21, 30, 1), scene(21, 30, 3)
    gray.save(HERE / "gray.jpg", quality=90)
    rgb.save(HERE / "rgb420.jpg", quality=90, subsampling=2)
    rgb.save(HERE / "rgb444.jpg", quality=90, subsampling=0)
    rgb.save(HERE / "progressive.jpg", quality=90, progressive=True)
    rgb.convert("CMYK").save(HERE / "cmyk.jpg", quality=95)
    # The same without Adobe's marker: Pillow takes the inks for inverted all the same.
    data = (HERE / "cmyk.jpg").read_bytes()
    at = data.index(b"\xff\xee")
    length = struct.unpack(">H", data[at + 2 : at + 4])[0]
    (HERE / "cmyk_plain.jpg").write_bytes(data[:at] + data[at + 2 + length :])
    for name in ("gray", "rgb420", "rgb444", "progressive", "cmyk", "cmyk_plain"):
        with Image.open(HERE / f"{name}.jpg") as picture:
            picture.convert("L" if name == "gray" else "RGB").save(HERE / f"{name}_decoded.png")


def resized_files():
    """Names: resize_<source>_<height>x<width>_<filter>.png"""
    for name, picture in (("gray8", scene(13, 17, 1)), ("rgb8", scene(13, 17, 3))):
        for height, width in ((7, 5), (32, 40), (13, 6), (29, 17), (1, 1), (3, 40)):
            for label, kind in (("bilinear", Image.BILINEAR), ("bicubic", Image.BICUBIC)):
                result = picture.resize((width, height), kind)
                result.save(HERE / f"resize_{name}_{height}x{width}_{label}.png")


def other_files():
    save_file(
        {
            "weight": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
            "count": np.array(-5, dtype=np.int64),
            "half": np.array([1.5, -2.0], dtype=np.float16),
            "mask": np.array([True, False, True]),
            "empty": np.zeros((0, 4), dtype=np.float64),
        },
        HERE / "official.safetensors",
        metadata={"format": "np", "name": "caf\u00e9"},
    )
    idx = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 3, 4) + bytes(range(24))
    (HERE / "images.idx").write_bytes(idx)
    (HERE / "images.idx.gz").write_bytes(gzip.compress(idx, mtime=0))
    (HERE / "options.toml").write_text(
        'model = "tiny"  # a comment\ndepths = [2, 2, 8, 2]\nema = true\n\n'
        "[recipe]\nlr = 1e-3\nepochs = 20\nschedule.kind = 'cosine'\n"
    )


png_files()
jpeg_files()
resized_files()
other_files()
