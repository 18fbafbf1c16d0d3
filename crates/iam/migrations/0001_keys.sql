-- Projects own keys, and later sandboxes and quota. One root now; children name their parent.
CREATE TABLE projects (
    id         TEXT PRIMARY KEY,
    parent_id  TEXT REFERENCES projects (id),
    name       TEXT NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;

INSERT INTO projects (id, parent_id, name, created_ms) VALUES ('pr-root', NULL, 'root', 0);

-- The key itself is never stored: only its digest.
CREATE TABLE api_keys (
    id         TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name       TEXT NOT NULL,
    digest     BLOB NOT NULL UNIQUE,
    created_ms INTEGER NOT NULL,
    revoked_ms INTEGER
) STRICT;

-- Among the keys that work, a name is one key's.
CREATE UNIQUE INDEX api_keys_live_name ON api_keys (project_id, name) WHERE revoked_ms IS NULL;
