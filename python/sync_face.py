"""Makes `dsec/_sync*.py` of `dsec/_async*.py`, so that the two faces cannot drift: `python3 python/sync_face.py`.

With `--check` it only says whether the files are what it would write.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent / "dsec"
FILES = ["_async.py", "_async_disk.py", "_async_images.py"]
# In order; the first that matches wins.
RULES = [
    (r'"""The async face\..*', '"""The sync face. Made of `_async.py` by `python/sync_face.py`: change that one."""'),
    (
        r'"""The async face of (.*)\. `_sync(_\w+)\.py`.*?(?P<end>"{3}|)$',
        r'"""The sync face of \1. Made of `_async\2.py` by `python/sync_face.py`: change that one.\g<end>',
    ),
    (r"(?<=from )\._async_disk\b", "._sync_disk"),
    (r"\b_awaiting\b", "_waiting"),
    (r"\basync (def|for|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\bAsync([A-Z]\w*)\b", r"\1"),
    (r"Cancelled, it", "Interrupted, it"),
    (r"or cancelling\b", "or Ctrl-C in"),
]


def sync_face(text: str) -> str:
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def main() -> int:
    for name in FILES:
        made = sync_face((PACKAGE / name).read_text())
        target = PACKAGE / name.replace("_async", "_sync")
        if "--check" not in sys.argv:
            target.write_text(made)
        elif not target.exists() or target.read_text() != made:
            print(f"dsec/{target.name} is not what sync_face.py makes of dsec/{name}: run it")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
