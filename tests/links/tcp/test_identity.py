"""Keys and certificates of a process."""

import ssl

from cryptography import x509

from paceline.links.tcp.identity import Identity


def test_each_process_has_its_own_key_and_name():
    certificates = [x509.load_der_x509_certificate(Identity().certificate) for _ in range(3)]
    assert len({certificate.subject.rfc4514_string() for certificate in certificates}) == 3
    assert len({certificate.public_key().public_numbers().x for certificate in certificates}) == 3


def test_nothing_older_than_tls_1_3_is_spoken_and_nobody_is_trusted_at_first():
    for server in (True, False):
        context = Identity().context(server=server)
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.get_ca_certs() == []


def test_the_key_is_in_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    Identity().context(server=True)
    assert list(tmp_path.iterdir()) == []
