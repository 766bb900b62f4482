"""A recording on disk, the folder ``NAME.joulemap/``: written while the program runs, read ever after.

::

    recording.json         format, status, and everything about the run; replaced whole, never edited
    recording.backup.json  the same once more
    events.*  steps.*  power/DOMAIN.*  process/DOMAIN.*      tables
    program.json           the structure of the program

A table is *open* while it is written (``X.arrows`` and ``X.sums``, see stream.py) and *sealed* afterwards
(``X.parquet``, see sealed.py).

Whoever writes may be killed at any moment: what was acknowledged is there afterwards. Whoever reads gets
what was written, or an error that names the file; with ``salvage`` the rest, and notes that say what is
missing.
"""

from joulemap.recording.appender import RecordingAppender
from joulemap.recording.info import FORMAT, RecordingInfo
from joulemap.recording.reader import Recording
from joulemap.recording.writer import RecordingWriter

__all__ = ["FORMAT", "Recording", "RecordingAppender", "RecordingInfo", "RecordingWriter"]
