# In a copy of the sandbox, as its root: each repository keeps what its HEAD, those of its worktrees and their indexes
# reach, and nothing else. Prints "<objects before> <objects after> <directory>" and a NUL for each. Names may hold
# anything, so they only travel as arguments.
set -eu
command -v git >/dev/null || { echo "git is not there" >&2; exit 69; }
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0

common='
set -eu
trap "[ \$? = 0 ] || echo \"in \${GIT_DIR:-?}\" >&2" EXIT
run() {
    git -c "safe.directory=*" -c core.hooksPath=/dev/null -c gc.auto=0 -c core.fsmonitor=false "$@"
}
is_repository() {
    [ -d "$1/objects" ] && [ -d "$1/refs" ]
}
'
# What others lend comes into the repository, so that each can be cleaned alone.
own="$common"'
for head; do
    dir=${head%/HEAD}
    is_repository "$dir" || continue
    export GIT_DIR="$dir"
    # Partial clones: what was fetched later is marked as not to be looked after.
    rm -f "$dir"/objects/pack/*.promisor
    [ -e "$dir/objects/info/alternates" ] || continue
    while IFS= read -r lent; do
        case $lent in "" | "#"*) continue ;; /*) ;; *) lent="$dir/objects/$lent" ;; esac
        [ -e "$lent/../HEAD" ] || { echo "objects are lent by $lent, which is no repository" >&2; exit 1; }
    done <"$dir/objects/info/alternates"
    run repack -adq
    rm -f "$dir/objects/info/alternates"
done
'
clean="$common"'
count() {
    run count-objects -v | awk "/^(count|in-pack):/ { sum += \$2 } END { print sum + 0 }"
}
for head; do
    dir=${head%/HEAD}
    is_repository "$dir" || continue
    export GIT_DIR="$dir"
    before=$(count)
    branch=$(run symbolic-ref -q HEAD || true)
    refs=$(run for-each-ref "--format=%(refname)")
    # No ref has a space in it.
    for ref in $refs; do
        [ "$ref" = "$branch" ] || run update-ref --no-deref -d "$ref"
    done
    # What else keeps or names old objects, here and in each worktree.
    for at in "$dir" "$dir"/worktrees/*; do
        rm -rf "$at/logs" "$at/refs/bisect" "$at/rebase-merge" "$at/rebase-apply" "$at/sequencer"
        rm -f "$at/ORIG_HEAD" "$at/FETCH_HEAD" "$at/MERGE_HEAD" "$at/CHERRY_PICK_HEAD" "$at/REVERT_HEAD" \
            "$at/BISECT_LOG" "$at/AUTO_MERGE"
    done
    rm -rf "$dir/rr-cache" "$dir/lfs" "$dir/objects/info/commit-graphs"
    rm -f "$dir/info/grafts" "$dir/objects/info/commit-graph" "$dir/gc.pid" \
        "$dir"/objects/pack/*.keep "$dir"/objects/pack/multi-pack-index*
    run repack -adq
    run prune --expire=now
    run prune-packed -q
    printf "%s %s %s\0" "$before" "$(count)" "$dir"
done
'
for work in "$own" "$clean"; do
    find / -xdev \( -path /proc -o -path /sys -o -path /dev \) -prune -o \( -type f -o -type l \) -name HEAD \
        -exec sh -c "$work" sh {} +
done
