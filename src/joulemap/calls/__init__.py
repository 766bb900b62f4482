"""API calls of a program: found in its source, measured where they are made.

``sites`` finds call expressions and ``rewrite`` makes them sites, in memory (``loader``) or in files
(``patching``, ``notebooks``). At run time a site (``runtime``) asks ``owner`` whether what is called belongs
to a chosen library and ``names`` for its public name, and ``store`` keeps the record. ``raw`` reads the
records into the ``table``.
"""
