"""Pictures as files: of the kind that the name asks for, and never over an existing file. Imports matplotlib late."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.errors import OutputExists, StorageError, UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # so that the same picture is the same file


def picture_kind(path: Path) -> str:
    """The kind of picture that a path asks for; a path that cannot be written is refused."""
    if not path.name or os.path.isdir(path):  # noqa: PTH112 - Path.is_dir may raise for a long name
        raise UserError(f"the picture {path} is a folder: name a file, such as {path / 'picture.png'}")
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise UserError(f"the picture {path} must end in .png, .svg or .pdf: choose one of them")
    if os.path.lexists(path):
        raise OutputExists(f"{path} exists already: choose another name, or remove it first")
    return kind


def picture_bytes(figure: Figure, kind: str = "png", dpi: int = 150) -> bytes:
    """A figure as png, svg or pdf."""
    import matplotlib as mpl

    stream, metadata = io.BytesIO(), dict[str, Any](_UNDATED.get(kind, {}))
    with mpl.rc_context({"svg.hashsalt": "attnlab"}):
        figure.savefig(stream, format=kind, dpi=dpi, metadata=metadata)
    return stream.getvalue()


def write_picture(path: Path, content: bytes) -> None:
    """Write a picture to a new file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        picture_kind(path)
        with path.open("xb") as stream:
            stream.write(content)
    except OSError as error:
        raise StorageError(f"the picture {path} cannot be written ({error.strerror}): choose another place") from None
