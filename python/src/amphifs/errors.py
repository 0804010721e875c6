"""Errors of this package. Failures of system calls stay ``OSError`` with their errno."""

from __future__ import annotations


class AmphiError(Exception):
    """What this package refuses or cannot do; the text says what to do about it."""


class NotOnAmphi(AmphiError, ValueError):
    """A path or an open file does not lie on an AmphiFS mount."""


class HintRefused(AmphiError, ValueError):
    """The mount did not take a hint, a layout or a tunable; nothing was changed."""


class CheckpointError(AmphiError):
    """A checkpoint cannot be written or read; what was there before is unchanged."""


class CheckpointDamaged(CheckpointError):
    """Bytes of a checkpoint are not those that were written."""
