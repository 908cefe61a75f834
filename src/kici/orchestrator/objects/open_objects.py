"""Opens the store that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.objects.directory_objects import DirectoryObjects
from kici.orchestrator.objects.obstore_objects import ObstoreObjects
from kici.orchestrator.settings import Settings, SettingsError

if TYPE_CHECKING:
    from obstore.store import S3Store


def open_objects(settings: Settings) -> Objects:
    """Raises `SettingsError` where they do not fit together."""
    if settings.storage_type == "filesystem":
        directory = settings.storage_fs_path or settings.data_dir / "objects"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return DirectoryObjects(directory)
    if settings.storage_type == "s3":
        if not settings.storage_bucket:
            raise SettingsError("KICI_STORAGE_TYPE=s3 needs KICI_STORAGE_BUCKET")
        external = settings.storage_external_endpoint or settings.storage_endpoint
        return ObstoreObjects(_bucket(settings, settings.storage_endpoint), signer=_bucket(settings, external))
    raise SettingsError(f"KICI_STORAGE_TYPE is {settings.storage_type!r}: use filesystem or s3")


def _bucket(settings: Settings, endpoint: str) -> S3Store:
    from obstore.store import S3Store

    options: dict[str, Any] = {}
    if settings.storage_region:
        options["region"] = settings.storage_region
    if endpoint:
        options["endpoint"] = endpoint
    return S3Store(
        settings.storage_bucket,
        prefix=settings.storage_prefix.strip("/") or None,
        client_options={"allow_http": endpoint.startswith("http://")},
        **options,
    )
