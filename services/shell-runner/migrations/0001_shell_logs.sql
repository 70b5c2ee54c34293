-- +goose Up
CREATE TABLE shell_logs (
    id          BIGINT  PRIMARY KEY, -- sequence of the event in the stream SHELL
    session_id  TEXT    NOT NULL,
    user_id     TEXT    NOT NULL,
    command     TEXT    NOT NULL,
    output      TEXT    NOT NULL DEFAULT '',
    executed_at BIGINT  NOT NULL, -- Unix milliseconds
    approved    BOOLEAN NOT NULL DEFAULT FALSE,
    approval_id TEXT    NOT NULL DEFAULT '',
    mode        TEXT    NOT NULL DEFAULT 'nl',
    dangerous   BOOLEAN NOT NULL DEFAULT FALSE,
    host        TEXT    NOT NULL DEFAULT '',
    status      TEXT    NOT NULL DEFAULT '',
    exit_status BIGINT, -- NULL: not known
    cwd         TEXT    NOT NULL DEFAULT '',
    duration_ms BIGINT  NOT NULL DEFAULT 0,
    approver    TEXT    NOT NULL DEFAULT '',
    channel     TEXT    NOT NULL DEFAULT '',
    truncated   BOOLEAN NOT NULL DEFAULT FALSE
);
CREATE INDEX idx_session_logs ON shell_logs (session_id);
CREATE INDEX idx_user_logs ON shell_logs (user_id, executed_at);
CREATE INDEX idx_timestamp_logs ON shell_logs (executed_at);

-- +goose Down
DROP TABLE shell_logs;
