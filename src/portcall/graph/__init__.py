# SPDX-License-Identifier: Apache-2.0
"""Compiled models: a graph of kernels, run here or on a device across a wire::

    m = portcall.graph.create(Path("m.json"), portcall.load_module("kernels.so"), portcall.cpu(0))
    m.load_params(Path("m.params"))
    m.run(data=x)
    y = m.get_output(0)

With a library and a device of a session (``portcall.rpc``) the same lines run on the server.
"""

from typing import TYPE_CHECKING

from portcall._renamed import no_attribute as _no_attribute
from portcall.graph._builder import Entry as Entry
from portcall.graph._builder import GraphBuilder as GraphBuilder
from portcall.graph._bundle import Bundle as Bundle
from portcall.graph._bundle import export_bundle as export_bundle
from portcall.graph._bundle import file_kind as file_kind
from portcall.graph._bundle import missing_kernels as missing_kernels
from portcall.graph._bundle import read_bundle as read_bundle
from portcall.graph._debug import GraphModuleDebug as GraphModuleDebug
from portcall.graph._debug import create_debug as create_debug
from portcall.graph._difference import GraphComparison as GraphComparison
from portcall.graph._difference import NodeDifference as NodeDifference
from portcall.graph._difference import compare as compare
from portcall.graph._draw import draw as draw
from portcall.graph._factory import EmbeddedGraph as EmbeddedGraph
from portcall.graph._factory import create_factory as create_factory
from portcall.graph._factory import read_embedded as read_embedded
from portcall.graph._memory import MemoryReport as MemoryReport
from portcall.graph._memory import memory_report as memory_report
from portcall.graph._module import GraphModule as GraphModule
from portcall.graph._module import UnexpectedParamsWarning as UnexpectedParamsWarning
from portcall.graph._module import create as create
from portcall.graph._params import ParamFile as ParamFile
from portcall.graph._params import ParamInfo as ParamInfo
from portcall.graph._params import load_params as load_params
from portcall.graph._params import load_params_from_file as load_params_from_file
from portcall.graph._params import save_params as save_params
from portcall.graph._params import save_params_to_file as save_params_to_file
from portcall.graph._plan import Plan as Plan
from portcall.graph._plan import StorageWarning as StorageWarning
from portcall.graph._plan import plan as plan
from portcall.graph._profile import KernelProfile as KernelProfile
from portcall.graph._profile import NodeProfile as NodeProfile
from portcall.graph._profile import Profile as Profile
from portcall.graph._spec import ORIGIN as ORIGIN
from portcall.graph._spec import Graph as Graph
from portcall.graph._spec import Node as Node
from portcall.graph._spec import Value as Value

# Names that this package had, and what to write instead.
_INSTEAD = {"get_device": "portcall.graph.create(graph, lib, device) checks devices itself"}

if not TYPE_CHECKING:  # for which a name that is not here is an error

    def __getattr__(name: str) -> object:
        raise _no_attribute(__name__, name, _INSTEAD)
