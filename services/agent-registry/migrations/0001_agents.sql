-- +goose Up
CREATE TABLE agents (
    id           BIGINT PRIMARY KEY REFERENCES principals (id),
    name         TEXT   NOT NULL,
    name_key     TEXT   NOT NULL UNIQUE,
    kind         TEXT   NOT NULL,
    description  TEXT   NOT NULL,
    last_seen_at BIGINT NOT NULL DEFAULT 0,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);

-- +goose Down
DROP TABLE agents;
