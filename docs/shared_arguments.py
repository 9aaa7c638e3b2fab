"""For the API pages: methods with the description that they have at run time.

``bbh.methods.register`` adds the arguments that all methods share to a method's own description.
"""

from typing import Any

import griffe


class SharedArguments(griffe.Extension):
    """Takes the docstrings of registered functions from the imported package."""

    def on_function(self, *, func: griffe.Function, **settings: Any) -> None:
        """Looks at every function; most are left as they are."""
        if func.docstring and any(str(one.value) == "register" for one in func.decorators):
            func.docstring.value = griffe.dynamic_import(func.path).__doc__
