# In a copy of the sandbox, as its root: each repository keeps what HEAD and its index reach, and nothing else.
# Prints "<objects before> <objects after> <directory>" for each. Names may hold anything, so they only travel as arguments.
set -eu
command -v git >/dev/null || { echo "git is not there" >&2; exit 69; }
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0

clean='
set -eu
run() {
    git -c "safe.directory=*" -c core.hooksPath=/dev/null -c gc.auto=0 -c core.fsmonitor=false "$@"
}
count() {
    run count-objects -v | awk "/^(count|in-pack):/ { sum += \$2 } END { print sum + 0 }"
}
for head; do
    dir=${head%/HEAD}
    # Reflogs and remotes have a HEAD too; the HEAD of a worktree is a root of the repository that it belongs to.
    case $dir in */logs | */refs/* | */worktrees/*) continue ;; esac
    [ -d "$dir/objects" ] && [ -d "$dir/refs" ] || continue
    export GIT_DIR="$dir"
    before=$(count)
    branch=$(run symbolic-ref -q HEAD || true)
    refs=$(run for-each-ref "--format=%(refname)")
    # No ref has a space in it.
    for ref in $refs; do
        [ "$ref" = "$branch" ] || run update-ref --no-deref -d "$ref"
    done
    # What else keeps or names old objects.
    rm -rf "$dir/logs" "$dir/rr-cache" "$dir/rebase-merge" "$dir/rebase-apply" "$dir/objects/info/commit-graphs"
    rm -f "$dir/ORIG_HEAD" "$dir/FETCH_HEAD" "$dir/MERGE_HEAD" "$dir/CHERRY_PICK_HEAD" "$dir/REVERT_HEAD" \
        "$dir/BISECT_LOG" "$dir/AUTO_MERGE" "$dir/objects/info/commit-graph" "$dir/gc.pid" \
        "$dir"/objects/pack/*.keep "$dir"/objects/pack/multi-pack-index*
    run repack -adq
    run prune --expire=now
    run prune-packed -q
    printf "%s %s %s\n" "$before" "$(count)" "$dir"
done
'
find / -xdev \( -path /proc -o -path /sys -o -path /dev \) -prune -o -type f -name HEAD -exec sh -c "$clean" sh {} +
