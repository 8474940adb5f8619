"""Makes positions those of one way of showing a view, so that nobody resumes into rows that were chosen otherwise.

The default limit and order of a view, its `visible_where` and its channels decide which rows a subscriber holds, and an
edit of them builds nothing anew. So a digest of them is part of the epoch in every position that readers get: what was
given on other terms is a position of another build to them, and going back to old terms makes old positions good again.
"""

from __future__ import annotations

from hashlib import blake2b

from penstock.declaration import Application, ViewDef


def shown_epoch(epoch: str, application: Application, view: ViewDef) -> str:
    """The epoch as readers see it: as it is where the app leaves nothing out of a view."""
    top = (view.order_by, view.limit) if view.limit is not None else None
    channels = sorted((c.name, c.where or "", c.select or ()) for c in application.channels if c.target == view.name)
    if top is None and view.visible_where is None and not channels:
        return epoch
    told = repr((top, view.visible_where, channels))
    return f"{epoch}.{blake2b(told.encode(), digest_size=4).hexdigest()}"
