# SPDX-License-Identifier: Apache-2.0
"""Certificates outside of their time: who connects, and who serves, is told since when, and what to do."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from portcall import errors, rpc
from portcall.rpc.wire._tls import TLSOptions, validity

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.timezone.utc)
TIMES = {"expired": (NOW - 9 * DAY, NOW - 2 * DAY), "early": (NOW + 2 * DAY, NOW + 9 * DAY)}


@pytest.fixture(params=["expired", "early"])
def certificate(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, Path]:
    """The date that the holder of a certificate needs to know, its file, and that of its authority."""
    authority = trustme.CA()
    begin, end = TIMES[request.param]
    made = authority.issue_cert("localhost", "127.0.0.1", not_before=begin, not_after=end)
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return f"{(end if request.param == 'expired' else begin):%Y-%m-%d}", tmp_path / "server.pem", tmp_path / "ca.pem"


def test_validity_is_read_of_pem_and_of_der(certificate: tuple[str, Path, Path]) -> None:
    date, own, _ = certificate
    found = validity(own.read_bytes())
    assert found is not None
    assert date in [f"{moment:%Y-%m-%d}" for moment in found]
    assert validity(b"nothing of the kind") is None


def test_client_of_a_certificate_outside_its_time_hears_the_date(certificate: tuple[str, Path, Path]) -> None:
    date, own, ca = certificate
    with rpc.Server(port=0, log="none", tls_certificate=str(own)) as server:
        with pytest.raises(errors.AuthenticationError, match=date) as raised:
            rpc.connect(server.address, tls=TLSOptions(ca=str(ca)))
        assert raised.value.reason == "certificate-time"
        words = [sys.executable, "-m", "portcall", "doctor", server.address, "--tls-ca", str(ca), "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 3
        report = json.loads(done.stdout)["error"]
        assert date in report["message"]
        assert "openssl req -x509" in report["next"]


@pytest.mark.parametrize("command", [["serve"], ["farm", "--store", ":memory:"]])
def test_server_with_a_certificate_outside_its_time_warns(
    certificate: tuple[str, Path, Path], command: list[str]
) -> None:
    date, own, _ = certificate
    words = [sys.executable, "-m", "portcall", *command, "--port", "0", "--tls-cert", str(own)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on ")
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert f"'{own}'" in said
    assert date in said
