"""`check_image.py ARCHIVE SITE`: the image in an OCI archive has every file of the site, and says its version."""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path


def main(archive: str, site: str) -> None:
    with tarfile.open(archive) as image:

        def blob(digest: str) -> bytes:
            member = image.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert member, f"the archive has no {digest}"
            data = member.read()
            assert hashlib.sha256(data).hexdigest() == digest.removeprefix("sha256:"), f"{digest} is something else"
            return data

        index = image.extractfile("index.json")
        assert index, "the archive has no index.json"
        manifest = json.loads(blob(json.load(index)["manifests"][0]["digest"]))
        labels = json.loads(blob(manifest["config"]["digest"]))["config"]["Labels"]
        files: dict[str, bytes] = {}
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(blob(layer["digest"]))) as unpacked:
                for member in unpacked:
                    content = unpacked.extractfile(member) if member.isfile() else None
                    if content:
                        files[member.name.lstrip("/")] = content.read()
    wanted = {f"site/{path.relative_to(site)}": path.read_bytes() for path in Path(site).rglob("*") if path.is_file()}
    assert files == wanted, f"the image has {sorted(files)}, the site {sorted(wanted)}"
    print(
        f"version {labels['org.opencontainers.image.version']}, {len(files)} files in {len(manifest['layers'])} layers"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
