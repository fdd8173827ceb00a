"""A part of the command `helm`, by helm's own engine: see tests/registry.sh, which puts the interpreter above this.

helm package CHART --destination FOLDER
helm push ARCHIVE oci://REGISTRY/FOLDER --plain-http
helm pull oci://REGISTRY/FOLDER/CHART --version VERSION --destination FOLDER --plain-http
"""

import argparse
import pathlib
import urllib.request

import helm_python

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def main():
    parser = argparse.ArgumentParser(prog="helm")
    commands = parser.add_subparsers(dest="command", required=True)
    package, push, pull = (commands.add_parser(name) for name in ("package", "push", "pull"))
    package.add_argument("chart")
    push.add_argument("archive")
    push.add_argument("remote")
    pull.add_argument("reference")
    pull.add_argument("--version", required=True)
    for one in (package, pull):
        one.add_argument("--destination", default=".")
    for one in (push, pull):
        one.add_argument("--plain-http", action="store_true")
    given = parser.parse_args()
    if given.command == "package":
        archive = helm_python.package(given.chart, destination=given.destination)
        print(f"Successfully packaged chart and saved it to: {archive}")
    elif given.command == "push":
        helm_python.push(given.archive, given.remote, plain_http=given.plain_http)
        name, _, version = pathlib.Path(given.archive).name.removesuffix(".tgz").partition("-")
        host, _, folder = given.remote.removeprefix("oci://").partition("/")
        # The engine does not say which digest the registry has given it.
        asked = urllib.request.Request(f"http://{host}/v2/{folder}/{name}/manifests/{version}", method="HEAD", headers={"Accept": MANIFEST})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            print(f"Pushed: {host}/{folder}/{name}:{version}\nDigest: {answer.headers['Docker-Content-Digest']}")
    else:
        helm_python.pull(
            given.reference, version=given.version, destination=given.destination, plain_http=given.plain_http
        )


main()
