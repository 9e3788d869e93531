# SPDX-License-Identifier: Apache-2.0
"""The side that calls: open a session, use its functions, tensors and files."""
