"""What lies in a folder of runs: every run and study in a few figures, found by any setting, and taken away when asked.

    entries    a folder read: complete, stopped, damaged or somebody else's, an entry all the same
    finding    by any figure or setting, in any order, by name
    details    one of them in full
    removing   only what this program certainly made is ever deleted

Knows nothing of torch, models or how a run is made.
"""

from attnlab.listing.details import details, folder_size
from attnlab.listing.entries import Entry, read, read_all
from attnlab.listing.finding import Filter, arrange, choose, find, with_inner
from attnlab.listing.removing import delete, may_delete, outermost, reasons_to_keep

__all__ = [
    "Entry",
    "Filter",
    "arrange",
    "choose",
    "delete",
    "details",
    "find",
    "folder_size",
    "may_delete",
    "outermost",
    "read",
    "read_all",
    "reasons_to_keep",
    "with_inner",
]
