# SPDX-License-Identifier: Apache-2.0
"""Graphs of objects: compare, hash, save, walk, rewrite and print them, and run passes over them.

``portcall.register_object`` and ``portcall.field`` define the types. What works on whole graphs is in a library of its
own, ``libportcall_ir``, which is loaded on first use.
"""

from typing import TYPE_CHECKING

from portcall._renamed import no_attribute as _no_attribute
from portcall.ir._classes import fields as fields
from portcall.ir._classes import get_object_class as get_object_class
from portcall.ir._classes import method as method
from portcall.ir._classes import register_value_type as register_value_type
from portcall.ir._classes import type_metadata as type_metadata
from portcall.ir._enum import Enum as Enum
from portcall.ir._enum import IntEnum as IntEnum
from portcall.ir._enum import StrEnum as StrEnum
from portcall.ir._enum import entry as entry
from portcall.ir._operations import Mismatch as Mismatch
from portcall.ir._operations import first_mismatch as first_mismatch
from portcall.ir._operations import from_bytes as from_bytes
from portcall.ir._operations import load_json as load_json
from portcall.ir._operations import map_children as map_children
from portcall.ir._operations import rewrite as rewrite
from portcall.ir._operations import save_json as save_json
from portcall.ir._operations import structural_equal as structural_equal
from portcall.ir._operations import structural_hash as structural_hash
from portcall.ir._operations import to_bytes as to_bytes
from portcall.ir._operations import visit as visit
from portcall.ir._operations import walk as walk
from portcall.ir._passes import Pass as Pass
from portcall.ir._passes import PassContext as PassContext
from portcall.ir._passes import PassTiming as PassTiming
from portcall.ir._passes import Sequential as Sequential
from portcall.ir._passes import register_pass as register_pass
from portcall.ir._printing import show as show

# Names that this package had, and what to write instead.
_INSTEAD = {"object_class": "it is portcall.ir.get_object_class(type_key)"}

if not TYPE_CHECKING:  # for which a name that is not here is an error

    def __getattr__(name: str) -> object:
        raise _no_attribute(__name__, name, _INSTEAD)
