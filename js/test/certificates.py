# SPDX-License-Identifier: Apache-2.0
"""Make certificates: ``certificates.py FOLDER`` writes ca.pem, 127.0.0.1.pem, elsewhere.pem. Prints ``done``."""

import sys
from pathlib import Path

import trustme

if __name__ == "__main__":
    folder, authority = Path(sys.argv[1]), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("127.0.0.1", "elsewhere"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
    print("done")
