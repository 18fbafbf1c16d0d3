-- What a project may do: a word of 64 bits. All of them, unless it was bounded: what its parent has, now and later.
ALTER TABLE projects ADD COLUMN rights INTEGER NOT NULL DEFAULT -1;
-- Bounds, and what its sandboxes and those of all below it take, as JSON by dimension.
ALTER TABLE projects ADD COLUMN quota TEXT NOT NULL DEFAULT '{}';
ALTER TABLE projects ADD COLUMN used TEXT NOT NULL DEFAULT '{}';
CREATE UNIQUE INDEX projects_name ON projects (parent_id, name);

ALTER TABLE api_keys ADD COLUMN kind TEXT NOT NULL DEFAULT 'service';
ALTER TABLE api_keys ADD COLUMN rights INTEGER NOT NULL DEFAULT -1;
ALTER TABLE api_keys ADD COLUMN expires_ms INTEGER;
ALTER TABLE api_keys ADD COLUMN made_by TEXT;

-- Taken before an edge is asked; gone when a tally counts what came of it, or at its end.
CREATE TABLE reservations (
    id         TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    amount     TEXT NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX reservations_end ON reservations (expires_ms);

-- The last word of each edge: which of its lives it is, and the number of the tally in it.
CREATE TABLE edges (
    id       TEXT PRIMARY KEY,
    started  INTEGER NOT NULL,
    sequence INTEGER NOT NULL
) STRICT;
CREATE TABLE tallies (
    edge_id    TEXT NOT NULL REFERENCES edges (id),
    project_id TEXT NOT NULL REFERENCES projects (id),
    amount     TEXT NOT NULL,
    PRIMARY KEY (edge_id, project_id)
) STRICT;

CREATE TABLE audit (
    id       INTEGER PRIMARY KEY,
    at_ms    INTEGER NOT NULL,
    key_id   TEXT NOT NULL,
    key_name TEXT NOT NULL,
    project  TEXT NOT NULL,
    verb     TEXT NOT NULL,
    target   TEXT NOT NULL,
    code     TEXT
) STRICT;
