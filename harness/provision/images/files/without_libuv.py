"""Debian builds PyTorch without libuv, and torchrun's agent asks every TCPStore for it.

USE_LIBUV=0 reaches only some of the callers, so the class itself answers: the plain socket server.
"""

from torch._C import _distributed_c10d

_init = _distributed_c10d.TCPStore.__init__


def _without_libuv(self: object, *args: object, **kwargs: object) -> None:
    kwargs["use_libuv"] = False
    _init(self, *args[:8], **kwargs)  # use_libuv is the ninth


_distributed_c10d.TCPStore.__init__ = _without_libuv
