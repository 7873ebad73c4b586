"""Build the file that `harness netcheck --print-module` prints: all of netcheck as a single Python module.

The file contains the source of each netcheck module as a string, and imports it from that string as a
submodule. Therefore the file works under any name and in any package. Run as a script, it does the same as
`python -m netcheck`.
"""

from __future__ import annotations

from importlib import metadata, resources
from pathlib import Path

_PACKAGE = Path(str(resources.files("harness"))) / "workers" / "netcheck"
_FILE = '''#!/usr/bin/env python3
"""netcheck @VERSION@ in one file (pluto-e2e-harness): name why ranks cannot meet, from inside their pods.

Copy it into the image or mount it, under any name, and import its functions, or run it in every pod at the
same time. Python 3.9 and nothing else. Printed by `harness netcheck --print-module`; do not edit it.
"""

import importlib
import importlib.abc
import importlib.util
import sys
import types

_SOURCES = {
@SOURCES@
}
_OWN = "netcheck" if __name__ == "__main__" else __name__


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the modules of netcheck from their text in this file."""

    def find_spec(self, name, path=None, target=None):
        package, _, module = name.rpartition(".")
        if package == _OWN and module in _SOURCES:
            return importlib.util.spec_from_loader(name, self, origin=f"{__file__}:{module}")
        return None

    def get_source(self, name):
        return _SOURCES[name.rpartition(".")[2]]

    def get_code(self, name):
        module = name.rpartition(".")[2]
        return compile(_SOURCES[module], f"{__file__}:{module}", "exec", dont_inherit=True)

    def is_package(self, name):
        return False


sys.meta_path.insert(0, _Sources())
if __name__ == "__main__":
    sys.modules[_OWN] = types.ModuleType(_OWN)
    sys.modules[_OWN].__path__ = []
    sys.exit(importlib.import_module(f"{_OWN}.__main__").main())
__path__ = []
__package__ = __name__
__spec__.submodule_search_locations = []
exec(compile(_SOURCES["__init__"], __file__, "exec"), globals())
'''


def single_file() -> str:
    """Return the content of the file. Raises ValueError if a source contains three single quotes in a row."""
    sources = []
    for path in sorted(_PACKAGE.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "'''" in text:
            raise ValueError(f"{path.name} has ''' in it, which ends its text in the one file")
        sources.append(f"    {path.stem!r}: r'''{text}''',")
    version = metadata.version("pluto-e2e-harness")
    return _FILE.replace("@VERSION@", version).replace("@SOURCES@", "\n".join(sources))
