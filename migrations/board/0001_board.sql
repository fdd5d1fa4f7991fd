-- What this daemon is doing, and what became of it. `body` columns hold JSON of the board's own types.
CREATE TABLE tasks (
    project TEXT NOT NULL,
    path    TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    phase   TEXT NOT NULL,
    body    TEXT NOT NULL,
    PRIMARY KEY (project, path)
) STRICT;

CREATE TABLE ended (
    project TEXT NOT NULL,
    path    TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    body    TEXT NOT NULL,
    PRIMARY KEY (project, path)
) STRICT;

CREATE TABLE projects (
    id   TEXT NOT NULL PRIMARY KEY,
    body TEXT NOT NULL
) STRICT;

-- paused, night, boot_id; each as JSON.
CREATE TABLE globals (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE nights (
    number  INTEGER NOT NULL PRIMARY KEY,
    started INTEGER NOT NULL,
    ended   INTEGER
) STRICT;

-- Times are milliseconds since 1970 (UTC).
CREATE TABLE journal (
    seq     INTEGER NOT NULL PRIMARY KEY,
    at      INTEGER NOT NULL,
    project TEXT,
    task    TEXT,
    epoch   INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    text    TEXT NOT NULL
) STRICT;
CREATE INDEX journal_task ON journal (project, task);

-- One row for each life of a task that came to an end.
CREATE TABLE history (
    id           INTEGER NOT NULL PRIMARY KEY,
    project      TEXT NOT NULL,
    path         TEXT NOT NULL,
    epoch        INTEGER NOT NULL,
    retry        INTEGER NOT NULL,
    night        INTEGER,
    title        TEXT NOT NULL,
    outcome      TEXT NOT NULL,
    status       TEXT NOT NULL,
    reason_class TEXT,
    reason       TEXT,
    question     TEXT,
    attempts     INTEGER NOT NULL,
    runs         INTEGER NOT NULL,
    input        INTEGER NOT NULL,
    output       INTEGER NOT NULL,
    cached       INTEGER NOT NULL,
    cost         REAL NOT NULL,
    partial      INTEGER NOT NULL,
    agent        TEXT,
    model        TEXT,
    queued       INTEGER NOT NULL,
    started      INTEGER,
    ended        INTEGER NOT NULL,
    branch       TEXT,
    target       TEXT,
    merge_commit TEXT,
    tip          TEXT,
    files        TEXT NOT NULL,
    changed      INTEGER NOT NULL,
    left_out     TEXT NOT NULL,
    UNIQUE (project, path, epoch)
) STRICT;
CREATE INDEX history_night ON history (night);
CREATE INDEX history_ended ON history (ended);

-- One row for each child program, written at its start and again at its end.
CREATE TABLE runs (
    run         TEXT NOT NULL PRIMARY KEY,
    project     TEXT NOT NULL,
    path        TEXT,
    epoch       INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    night       INTEGER,
    started     INTEGER NOT NULL,
    ended       INTEGER,
    exit        TEXT,
    verdict     TEXT,
    input       INTEGER NOT NULL,
    output      INTEGER NOT NULL,
    cached      INTEGER NOT NULL,
    cost        REAL,
    turns       INTEGER NOT NULL,
    known       INTEGER NOT NULL,
    profile     TEXT,
    model       TEXT,
    cli_version TEXT
) STRICT;
CREATE INDEX runs_task ON runs (project, path);
CREATE INDEX runs_started ON runs (started);
