#!/usr/bin/env python3
"""Certificates for tests, made with openssl: a root, a region's authority, leaves, and ones that must be refused.

    pki.py make DIR                                      all that a test server and its clients need
    pki.py leaf DIR NAME SUBJECT --ca CERT --ca-key KEY  one client leaf, e.g. of a fabric; --expired, --chain FILE

Subjects are written as for openssl: /O=tenantA/OU=region-a/CN=alice. Keys are ECDSA P-256 and stay in DIR.
"""

import argparse
import pathlib
import subprocess
import sys

AUTHORITY = "basicConstraints=critical,CA:true\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
CLIENT = "basicConstraints=critical,CA:false\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=clientAuth\n"
SERVER = (
    "basicConstraints=critical,CA:false\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
    "subjectAltName=DNS:localhost,IP:127.0.0.1\n"
)
# openssl's own `x509 -req` cannot date a certificate back; `openssl ca` can, and needs a small data base for it.
CA_CONFIG = """[ca]
default_ca = it
[it]
database = {directory}/index.txt
new_certs_dir = {directory}
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
copy_extensions = none
[any]
countryName = optional
organizationName = optional
organizationalUnitName = optional
commonName = optional
"""


def openssl(*arguments):
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"openssl {arguments[0]} failed: {done.stderr.strip()}")


def request(directory, name, subject):
    key, csr = directory / f"{name}.key", directory / f"{name}.csr"
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    key.chmod(0o600)
    openssl("req", "-new", "-key", key, "-subj", subject, "-multivalue-rdn", "-out", csr)
    return key, csr


def issue(directory, name, subject, extensions, ca=None, ca_key=None, chain=None, expired=False):
    """Makes NAME.key and NAME.pem; the certificate is followed by `chain` when one is given."""
    key, csr = request(directory, name, subject)
    cert, ext = directory / f"{name}.pem", directory / f"{name}.ext"
    ext.write_text(extensions)
    if ca is None:
        openssl("x509", "-req", "-in", csr, "-signkey", key, "-days", 30, "-extfile", ext, "-out", cert)
    elif expired:
        config = directory / "ca.cnf"
        config.write_text(CA_CONFIG.format(directory=directory))
        (directory / "index.txt").write_text("")
        dates = ("-startdate", "20200101000000Z", "-enddate", "20200201000000Z")
        openssl(
            *("ca", "-batch", "-notext", "-config", config, "-cert", ca, "-keyfile", ca_key),
            *("-in", csr, "-extfile", ext, "-preserveDN", *dates, "-out", cert),
        )
    else:
        serial = ("-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-CAserial", directory / f"{name}.srl")
        openssl("x509", "-req", "-in", csr, *serial, "-days", 30, "-extfile", ext, "-out", cert)
    if chain is not None:
        cert.write_text(cert.read_text() + pathlib.Path(chain).read_text())
    return cert, key


def make(directory):
    """A fabric of one region, and a foreign one. Returns nothing: file names are fixed."""
    root, root_key = issue(directory, "root", "/CN=test root", AUTHORITY)
    region, region_key = issue(directory, "region", "/CN=region-a CA", AUTHORITY, root, root_key)
    under = {"ca": region, "ca_key": region_key, "chain": region}
    issue(directory, "server", "/O=system/OU=region-a/CN=broker", SERVER, **under)
    issue(directory, "alice", "/O=tenantA/OU=region-a/CN=alice", CLIENT, **under)
    issue(directory, "expired", "/O=tenantA/OU=region-a/CN=alice", CLIENT, expired=True, **under)
    issue(directory, "unknown-tenant", "/O=tenantZ/OU=region-a/CN=alice", CLIENT, **under)
    issue(directory, "two-o", "/O=tenantA/O=tenantB/OU=region-a/CN=alice", CLIENT, **under)
    foreign(directory)


def foreign(directory):
    """The same names under another root."""
    root, root_key = issue(directory, "foreign-root", "/CN=test root", AUTHORITY)
    issue(directory, "foreign", "/O=tenantA/OU=region-a/CN=alice", CLIENT, root, root_key, root)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("make", "foreign"):
        commands.add_parser(name).add_argument("directory", type=pathlib.Path)
    leaf = commands.add_parser("leaf")
    leaf.add_argument("directory", type=pathlib.Path)
    leaf.add_argument("name")
    leaf.add_argument("subject")
    leaf.add_argument("--ca", required=True)
    leaf.add_argument("--ca-key", required=True)
    leaf.add_argument("--chain")
    leaf.add_argument("--expired", action="store_true")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.command == "make":
        make(options.directory)
    elif options.command == "foreign":
        foreign(options.directory)
    else:
        authority = (options.ca, options.ca_key, options.chain, options.expired)
        issue(options.directory, options.name, options.subject, CLIENT, *authority)


if __name__ == "__main__":
    main()
