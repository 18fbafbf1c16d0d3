-- Secrets of the cluster, from which it makes tokens that it need not remember. Made once, the same for every process.
CREATE TABLE secrets (
    name       TEXT PRIMARY KEY,
    secret     BLOB NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;
