"""SQLite's write-ahead log, read without SQLite: whether it holds committed transactions that SQLite does not read.

SQLite ends the log at the first frame whose checksum is wrong, without an error. With `synchronous=FULL` a transaction is on
disk before the next is written, so a frame behind a complete transaction shows that the transaction was on disk. A damaged last
transaction cannot be told from one that a power cut interrupted, but by `revision_record`. Format: sqlite.org/walformat.html.
Called by `database_file`. Modifies nothing."""

from __future__ import annotations

import os
import struct
from pathlib import Path

MAGIC = (0x377F0682, 0x377F0683)  # checksums over little-endian and big-endian words
HEADER = 32
FRAME_HEADER = 24
INDEX_FRAMES = slice(16, 20)  # of the index (-shm): the number of frames that are valid and committed


def damage(wal: Path, index: Path) -> str:
    """What shows that the log lost transactions, "" when nothing does. `index` was written by SQLite when it read the log."""
    with wal.open("rb") as file:
        size, header = os.fstat(file.fileno()).st_size, file.read(HEADER)
        if size <= HEADER:
            return ""  # the header is on disk before the first frame is written
        if not _is_header(header):
            return "its header is damaged" if any(header) or _any_byte(file.fileno(), size) else ""
        salt, frame_size = header[16:24], FRAME_HEADER + int.from_bytes(header[8:12], "big")
        valid = _valid_frames(index)
        complete = False  # a transaction behind the valid frames has its last frame
        for number in range(valid, (size - HEADER) // frame_size):
            frame = os.pread(file.fileno(), FRAME_HEADER, HEADER + number * frame_size)
            if frame[8:16] != salt:
                continue  # of an earlier round through the file
            if complete:
                return f"frame {valid + 1} of {number + 1} or one soon after it is damaged"
            complete = frame[4:8] != bytes(4)
    return ""


def _valid_frames(index: Path) -> int:
    with index.open("rb") as file:
        return int(struct.unpack("=I", file.read(HEADER)[INDEX_FRAMES])[0])


def _is_header(header: bytes) -> bool:
    magic, _, size = struct.unpack(">III", header[:12])
    if magic not in MAGIC or size & (size - 1) or not 512 <= size <= 65536:
        return False
    first = second = 0
    words = struct.unpack("<6I" if magic == MAGIC[0] else ">6I", header[:24])
    for low, high in zip(words[::2], words[1::2], strict=True):
        first = (first + low + second) & 0xFFFFFFFF
        second = (second + high + first) & 0xFFFFFFFF
    return struct.pack(">II", first, second) == header[24:32]


def _any_byte(handle: int, size: int, step: int = 1 << 20) -> bool:
    return any(any(os.pread(handle, step, start)) for start in range(0, size, step))
