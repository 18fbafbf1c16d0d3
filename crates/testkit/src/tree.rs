//! A sandbox's file tree as text, to be compared with another's.

/// A shell command for root inside: every path with kind, mode, owner, size, target, attributes and content, but what the
/// kernel and DSec put there.
pub const TREE: &str = "cd / && find . -xdev \\( -path ./proc -o -path ./sys -o -path ./dev \\) -prune -o -print0 | sort -z \
    | xargs -0 -n 500 python3 -c '
import os, sys, hashlib
skip = {\"./etc/hostname\", \"./etc/hosts\", \"./etc/resolv.conf\"}
for p in sys.argv[1:]:
    if p in skip: continue
    s = os.lstat(p)
    x = \"\"
    if os.path.islink(p): x = os.readlink(p)
    elif os.path.isfile(p): x = hashlib.file_digest(open(p, \"rb\"), \"sha256\").hexdigest()
    a = [(n, os.getxattr(p, n, follow_symlinks=False)) for n in sorted(os.listxattr(p, follow_symlinks=False))]
    d = os.path.isdir(p) and not os.path.islink(p)
    print(p, oct(s.st_mode), s.st_uid, s.st_gid, 0 if d else s.st_size, 0 if d else s.st_nlink, 0 if p in (\".\", \"./etc\") else int(s.st_mtime), x, a)
'";
