"""Make every TCPStore use its plain socket server, because Debian builds PyTorch without libuv.

torchrun's agent requests libuv for every TCPStore. USE_LIBUV=0 affects only some of the callers, so this
module changes the class itself.
"""

from torch._C import _distributed_c10d

_init = _distributed_c10d.TCPStore.__init__


def _without_libuv(self: object, *args: object, **kwargs: object) -> None:
    kwargs["use_libuv"] = False
    _init(self, *args[:8], **kwargs)  # use_libuv is the ninth argument


_distributed_c10d.TCPStore.__init__ = _without_libuv
