"""An extension of griffe: where a docstring names the place of its example, the site has a link to it."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Links(griffe.Extension):
    """Makes links of names of fffs; a name that has no place is then an error of the build."""

    def on_instance(self, *, obj: griffe.Object, **_kwargs: Any) -> None:
        """Change the docstring of an object that was loaded."""
        if obj.docstring:
            text = re.sub(r"Example: ``(fffs\.[\w.]+)``", r"Example: [`\1`][\1]", obj.docstring.value)
            obj.docstring.value = re.sub(r"Example: ``(docs/\w+)\.md``", r"Example: [\1.md](../../\1.md)", text)
