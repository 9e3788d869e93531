# SPDX-License-Identifier: Apache-2.0
"""Compiled models: a graph of kernels, run here or on a device across a wire.

    m = portcall.graph.create(graph_json, portcall.load_module("kernels.so"), portcall.cpu(0))
    m.load_params(Path("m.params").read_bytes())
    m.run(data=x)
    m.get_output(0)
"""
