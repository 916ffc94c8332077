"""The container (``.lynx``): many named tensors on disk, anchors before residuals. Format: docs/format.md."""

from lynxq.container.appending import append
from lynxq.container.expect import Expect
from lynxq.container.loading import describe, load, open  # noqa: A004 - the name that users expect
from lynxq.container.reader import Reader
from lynxq.container.saving import save, save_split
from lynxq.container.stored import StoredTensor
from lynxq.container.writer import Writer

__all__ = [
    "Expect",
    "Reader",
    "StoredTensor",
    "Writer",
    "append",
    "describe",
    "load",
    "open",
    "save",
    "save_split",
]
