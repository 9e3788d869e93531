# SPDX-License-Identifier: Apache-2.0
"""Errors that cross languages."""

from portcall._function import register_error

__all__ = ["register_error"]
