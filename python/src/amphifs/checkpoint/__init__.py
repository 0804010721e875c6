"""Checkpoints that appear whole or not at all.

A checkpoint is a directory. Each rank of a job writes one shard of it, two files: ``shard-00000.data`` with the bytes
and ``shard-00000.json`` with what lies where and the checksum of each piece. All of it is made in the hidden directory
``.NAME.partial-ATTEMPT`` beside the target. When all ranks are done, and all bytes are stable, rank 0 writes
``manifest.json`` and renames the directory to its name. So a reader, a crash and a loss of power see no checkpoint or a
whole one.

Works on any directory of Linux; on a mount of AmphiFS the shards of all ranks may come from different machines.
"""

from amphifs.checkpoint.layout import PIECE_BYTES, Entry
from amphifs.checkpoint.reader import Reader, latest
from amphifs.checkpoint.writer import Writer, clean, leftovers

__all__ = ["PIECE_BYTES", "Entry", "Reader", "Writer", "clean", "latest", "leftovers"]
