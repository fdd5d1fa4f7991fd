-- The last sign of life of each run. Times are milliseconds since 1970 (UTC).
CREATE TABLE beats (
    run           TEXT NOT NULL PRIMARY KEY,
    project       TEXT NOT NULL,
    path          TEXT NOT NULL,
    at            INTEGER NOT NULL,
    last_output   INTEGER NOT NULL,
    last_progress INTEGER NOT NULL,
    bytes         INTEGER NOT NULL,
    cpu_ms        INTEGER NOT NULL,
    rss           INTEGER NOT NULL
) STRICT;
