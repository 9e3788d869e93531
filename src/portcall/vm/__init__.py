# SPDX-License-Identifier: Apache-2.0
"""Models that TVM compiled for its Relax virtual machine, run here or on a device across a wire::

    m = portcall.vm.create(portcall.load_module("m.so"), portcall.cpu(0))
    y = m(x)                          # the function "main"
    y = m["decode"](ids, state=s)

With a library and a device of a session (``portcall.rpc``) the same lines run on the server.
"""

from typing import TYPE_CHECKING

from portcall._renamed import no_attribute as _no_attribute
from portcall.vm._cache import CacheInfo as CacheInfo
from portcall.vm._cache import read_cache as read_cache
from portcall.vm._executable import ConstantInfo as ConstantInfo
from portcall.vm._executable import ExecutableInfo as ExecutableInfo
from portcall.vm._executable import FunctionInfo as FunctionInfo
from portcall.vm._executable import Parameter as Parameter
from portcall.vm._executable import Signature as Signature
from portcall.vm._executable import read_embedded as read_embedded
from portcall.vm._language import LanguageModel as LanguageModel
from portcall.vm._language import TokenSequence as TokenSequence
from portcall.vm._language import language as language
from portcall.vm._machine import Function as Function
from portcall.vm._machine import VirtualMachine as VirtualMachine
from portcall.vm._machine import create as create
from portcall.vm._profile import Profile as Profile
from portcall.vm._profile import ProfileRow as ProfileRow

# Names that this package had, and what to write instead.
_INSTEAD = {
    "ENTRY": "ExecutableInfo.entry and VirtualMachine.entry are the function that is called without a name",
    "KIND": "read_embedded(path) is None for a library without an executable",
}

if not TYPE_CHECKING:  # for which a name that is not here is an error

    def __getattr__(name: str) -> object:
        raise _no_attribute(__name__, name, _INSTEAD)
