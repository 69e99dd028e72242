# SPDX-License-Identifier: Apache-2.0
"""Why a verb was refused or failed: one code, one exception class a code.

The numbers are those of `msg/VerbResult.msg`, so that a node answers with `int(fault.code)`.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Machine-readable outcome of a verb."""

    OK = 0
    INVALID_ARGUMENT = 1
    UNKNOWN_CAPSULE = 2
    NAME_TAKEN = 3
    STALE_BOUNDARY = 4
    STALE_EPOCH = 5
    FINGERPRINT_MISMATCH = 6
    CORRUPT = 7
    NOT_STORED = 8
    NO_SPACE = 9
    NOT_READY = 10
    NEEDS_RESET = 11
    UNSUPPORTED = 12
    IN_USE = 13
    CANCELLED = 14
    DEADLINE_EXCEEDED = 15
    UNKNOWN_INSTRUCTION = 16
    BUSY = 17
    EMERGENCY_STOP = 18
    PREEMPTED = 19
    INTERNAL = 99


class RuntimeFault(Exception):
    """Base of every refusal and failure; `code` says which. Raise a subclass."""

    code: Code = Code.INTERNAL

    @staticmethod
    def of(code: Code, message: str) -> RuntimeFault:
        """The fault of the class that belongs to `code`."""
        for kind in RuntimeFault.__subclasses__():
            if kind.code == code:
                return kind(message)
        raise ValueError(f"no fault class for code {code!r}; OK is not a fault")


class InvalidArgument(RuntimeFault):
    """An argument has a value that cannot be meant."""

    code = Code.INVALID_ARGUMENT


class UnknownCapsule(RuntimeFault):
    """No capsule has this id or name."""

    code = Code.UNKNOWN_CAPSULE


class NameTaken(RuntimeFault):
    """The name is in use and overwriting was not asked for."""

    code = Code.NAME_TAKEN


class StaleBoundary(RuntimeFault):
    """The expected boundary is not the live one; nothing was changed."""

    code = Code.STALE_BOUNDARY


class StaleEpoch(RuntimeFault):
    """The expected epoch is not the live one; nothing was changed."""

    code = Code.STALE_EPOCH


class FingerprintMismatch(RuntimeFault):
    """The capsule belongs to another model, config, buffer table or set of registered state."""

    code = Code.FINGERPRINT_MISMATCH


class Corrupt(RuntimeFault):
    """Stored bytes do not match their checksum or their format."""

    code = Code.CORRUPT


class NotStored(RuntimeFault):
    """The boundary exists, but no capsule of it is stored."""

    code = Code.NOT_STORED


class NoSpace(RuntimeFault):
    """A tier's budget or the disk is full."""

    code = Code.NO_SPACE


class NotReady(RuntimeFault):
    """Something that the verb needs is not there yet."""

    code = Code.NOT_READY


class NeedsReset(RuntimeFault):
    """A copy into the live state failed half-way; only `reset` is accepted."""

    code = Code.NEEDS_RESET


class Unsupported(RuntimeFault):
    """The verb or option does not exist for this model, device or store."""

    code = Code.UNSUPPORTED


class InUse(RuntimeFault):
    """The capsule is referred to and cannot be removed."""

    code = Code.IN_USE


class Cancelled(RuntimeFault):
    """The caller cancelled, or the session was closed meanwhile."""

    code = Code.CANCELLED


class DeadlineExceeded(RuntimeFault):
    """The caller's deadline passed before the verb was applied."""

    code = Code.DEADLINE_EXCEEDED


class UnknownInstruction(RuntimeFault):
    """The tokenizer does not know these words."""

    code = Code.UNKNOWN_INSTRUCTION


class Busy(RuntimeFault):
    """Too many requests wait already."""

    code = Code.BUSY


class EmergencyStop(RuntimeFault):
    """The emergency stop is pressed: nothing may move."""

    code = Code.EMERGENCY_STOP


class Preempted(RuntimeFault):
    """A later request took over."""

    code = Code.PREEMPTED


class InternalFault(RuntimeFault):
    """A fault of this software: a broken promise between its parts."""

    code = Code.INTERNAL
