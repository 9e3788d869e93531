# SPDX-License-Identifier: Apache-2.0
"""``python -m portcall`` is the ``portcall`` command."""

from portcall.cli import main

main()
