"""Scripts written for Ray Tune: the package ``ray`` of an import line is called ``holdfast.compat``.

Owns names only: what they stand for lives elsewhere (``aliases`` has the table), and spellings of earlier generations.
Through these names an experiment whose name exists already is resumed, as scripts of those generations expect.
"""

from holdfast.compat import aliases as _aliases

_aliases.install()
