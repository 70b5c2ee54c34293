-- Who has an id: people, Butler and agents share one row of numbers. The first two are reserved, so that on a new
-- installation the first admin is 1 and Butler is 2, whichever service starts first.

-- +goose Up
CREATE TABLE principals (
    id   BIGINT PRIMARY KEY,
    kind TEXT   NOT NULL
);

INSERT INTO principals (id, kind) VALUES (1, 'person'), (2, 'butler');
