# SPDX-License-Identifier: Apache-2.0
"""Describe a compiled library without loading it: what it is, offers and needs.

A library that does not load gives obscure errors, late. This package reads the file instead: machine, calling
convention, functions, embedded modules, and for this machine also whether each library, each symbol and each symbol
version is there. No code of the library runs.
"""

from portcall.inspect._library import Dependency as Dependency
from portcall.inspect._library import LibraryReport as LibraryReport
from portcall.inspect._library import embedded_payload as embedded_payload
from portcall.inspect._library import inspect_library as inspect_library
from portcall.inspect._machine import Machine as Machine
from portcall.inspect._machine import this_machine as this_machine
from portcall.inspect._seal import check_file as check_file
