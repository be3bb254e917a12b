"""Import our own modules from memory, so that nothing has to be installed or written anywhere.

Two forms travel. To the head: module name -> source text, as JSON, because its Python may be
another than the caller's. From the head to the nodes, which run the Python of the head: module
name -> code object, marshalled, because compiling costs a node more than all the rest.
"""

from __future__ import annotations

import marshal
import sys
import zlib
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import MAGIC_NUMBER
from types import CodeType, ModuleType
from typing import Any, Optional, Union

# What is on its way to the head lies in Ray's control store under a name that begins so, followed
# by the Unix time of its sending.
STORE, PACKAGE_PREFIX = "gcs://", "raydiag-"


class _Importer:
    """Finds and runs modules of the bundle; a name that others start with is a package."""

    def __init__(self, modules: Mapping[str, Union[str, CodeType]]) -> None:
        self.modules = dict(modules)
        self.packages = {name.rpartition(".")[0] for name in modules}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """For modules of the bundle."""
        if name not in self.modules:
            return None
        return ModuleSpec(name, self, is_package=name in self.packages)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual one."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, once."""
        # Taken out: nobody imports it twice, and a node has better uses for the memory.
        text = self.modules.pop(module.__name__)
        exec(compiled(module.__name__, text), module.__dict__)  # our own code  # nosec B102


def install(modules: Mapping[str, Union[str, CodeType]]) -> None:
    """Let `import` find the modules of the bundle, before anything installed on this machine."""
    sys.meta_path.insert(0, _Importer(modules))


def packed(modules: Mapping[str, Union[str, CodeType]], request: Mapping[str, Any]) -> bytes:
    """The bundle for the nodes, as the entrypoint `node_runner` reads it from its stdin."""
    code = {name: compiled(name, text) for name, text in modules.items()}
    return MAGIC_NUMBER + zlib.compress(marshal.dumps({"modules": code, "request": dict(request)}))


def compiled(name: str, text: Union[str, CodeType]) -> CodeType:
    """The module's code; what is code already is returned as it is."""
    if isinstance(text, CodeType):
        return text
    path = f"<carried>/{name.replace('.', '/')}.py"
    return compile(text, path, "exec", dont_inherit=True, optimize=2)  # docstrings stay at home
