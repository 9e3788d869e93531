# SPDX-License-Identifier: Apache-2.0
"""Helpers for those who give functions of C++ an interface in Python."""
