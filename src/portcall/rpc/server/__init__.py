# SPDX-License-Identifier: Apache-2.0
"""The side that is called: ``portcall serve`` and its processes."""
