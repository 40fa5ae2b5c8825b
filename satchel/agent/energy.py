"""The energy this process has used, where the system counts it. Knows nothing of what it was used for."""

from __future__ import annotations

import ctypes
import os
import sys

_LIBPROC = "/usr/lib/libproc.dylib"
_RUSAGE_INFO_V4 = 4
_NANO = 1e-9


class _RusageInfoV4(ctypes.Structure):
    """`struct rusage_info_v4` of macOS (sys/resource.h), with what is not used here in groups."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("times_wakeups_memory_disk", ctypes.c_uint64 * 18),  # ri_user_time to ri_diskio_byteswritten
        ("cpu_time_by_qos", ctypes.c_uint64 * 7),  # ri_cpu_time_qos_default to …_user_interactive
        ("billed_and_serviced_system_time", ctypes.c_uint64 * 2),
        ("logical_writes", ctypes.c_uint64),
        ("lifetime_max_phys_footprint", ctypes.c_uint64),
        ("instructions", ctypes.c_uint64),
        ("cycles", ctypes.c_uint64),
        ("billed_energy", ctypes.c_uint64),  # nanojoules
        ("serviced_energy", ctypes.c_uint64),
        ("interval_max_phys_footprint", ctypes.c_uint64),
        ("runnable_time", ctypes.c_uint64),
    )


def joules() -> float | None:
    """What the processor's cores have used for this process since it began; the GPU's share is not in it.

    None where the system does not tell: anywhere but on macOS, and on Macs that do not count it.
    """
    if sys.platform != "darwin":
        return None
    return _billed_joules()


def _billed_joules() -> float | None:
    info = _RusageInfoV4()
    try:
        ask = ctypes.CDLL(_LIBPROC).proc_pid_rusage
        ask.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
        failed = ask(os.getpid(), _RUSAGE_INFO_V4, ctypes.byref(info))
    except (OSError, AttributeError):  # no such library; no such function in it
        return None
    if (
        failed or not info.billed_energy
    ):  # a process that runs has used some: 0 is a counter that is not there
        return None
    return info.billed_energy * _NANO
