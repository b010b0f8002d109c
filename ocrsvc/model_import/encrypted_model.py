"""Makes of a plain version what an encrypted one is written from: everything but its `model.toml` is encrypted."""

from __future__ import annotations

from ocrsvc.errors import BadModel
from ocrsvc.model_import.new_model import NewModel
from ocrsvc.model_import.write_description import write_description
from ocrsvc.model_repository.description import Encryption, parse_description
from ocrsvc.model_repository.encryption import encrypt, new_set_id
from ocrsvc.model_repository.model_key import ModelKey
from ocrsvc.model_repository.version import DESCRIPTION_FILE, ModelVersion


def encrypt_model(version: ModelVersion, key: ModelKey) -> NewModel:
    """The files of a version, encrypted together.

    Args:
        version: A plain one; it is held against its manifest.
        key: The one that decrypts them.

    Raises:
        BadModel: It is encrypted already, is damaged, or its engine opens files by their path; or the package that
            encrypts is not installed.
    """
    if version.description.encryption is not None:
        raise BadModel(f"{version} is encrypted already.", "Take the plain version.")
    if paths := version.description.paths:
        raise BadModel(
            f"{version}: the engine {version.description.engine} opens files by their path ({', '.join(paths)}), and "
            "an encrypted one is plain in memory only.",
            "Leave models of this engine plain.",
        )
    encryption = Encryption(key=key.id, set=new_set_id())
    text = _described(version, encryption)
    names = [name for name in version.digests or version.description.files if name != DESCRIPTION_FILE]
    files = {name: encrypt(version.read(name), name, encryption.set, key) for name in names}
    return NewModel(parse_description(text), {DESCRIPTION_FILE: text.encode(), **files})


def _described(version: ModelVersion, encryption: Encryption) -> str:
    """The version's `model.toml` as somebody wrote it, with a table more at its end."""
    text = write_description(version.description) if version.is_built_in else version.read(DESCRIPTION_FILE).decode()
    return f'{text.rstrip()}\n\n[encryption]\nkey = "{encryption.key}"\nset = "{encryption.set}"\n'
