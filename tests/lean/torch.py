# SPDX-License-Identifier: Apache-2.0
"""Stands for torch in the programs that tests start: TVM imports torch where there is one, which takes twice as long as
TVM itself, and none of them needs it."""

raise ImportError("tests/lean leaves torch out")
